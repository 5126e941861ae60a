# SPDX-License-Identifier: Apache-2.0
"""Find out where a running guest's pages lie, and move them."""
