# SPDX-License-Identifier: Apache-2.0
"""The demonstration: the same six guests on the same emulated host, started in each way."""
