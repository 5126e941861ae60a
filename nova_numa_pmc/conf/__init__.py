# SPDX-License-Identifier: Apache-2.0
"""The operator's options, with one module for each area; no option is registered at import."""
