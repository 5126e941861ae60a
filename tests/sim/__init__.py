# SPDX-License-Identifier: Apache-2.0
"""A host whose guests run, wait, reach for far memory and are moved: in numbers only."""
