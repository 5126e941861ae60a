# SPDX-License-Identifier: Apache-2.0
"""What Nova's API loads from us."""
