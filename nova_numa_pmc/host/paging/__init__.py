# SPDX-License-Identifier: Apache-2.0
"""A running guest's pages: where they lie, and moving them."""
