# SPDX-License-Identifier: Apache-2.0
"""What the operator's verbs share: they see the host, name guests, make moves and undo them."""
