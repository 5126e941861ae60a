# SPDX-License-Identifier: Apache-2.0
"""Options: what an operator can set, one module for each area; nothing is registered at import."""
