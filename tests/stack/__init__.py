# SPDX-License-Identifier: Apache-2.0
"""OpenStack's control plane and emulated compute hosts, for real: see README.rst."""
