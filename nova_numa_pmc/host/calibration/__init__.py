# SPDX-License-Identifier: Apache-2.0
"""Find out what memory delivers and how far it is: measured, or from the firmware."""
