# SPDX-License-Identifier: Apache-2.0
"""Our own files on a host: promises, publications, overrides, history and calibration."""
