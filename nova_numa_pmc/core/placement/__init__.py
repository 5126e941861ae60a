# SPDX-License-Identifier: Apache-2.0
"""Where the CPUs and the memory of one guest belong."""
