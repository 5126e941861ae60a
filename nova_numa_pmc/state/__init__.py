# SPDX-License-Identifier: Apache-2.0
"""Our own files on a host, such as promises, publication, overrides and history."""
