# SPDX-License-Identifier: Apache-2.0
"""The host's own files: promises, publications, overrides, moves and measurements."""
