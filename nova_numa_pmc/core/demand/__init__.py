# SPDX-License-Identifier: Apache-2.0
"""What guests have wanted over minutes and over a day."""
