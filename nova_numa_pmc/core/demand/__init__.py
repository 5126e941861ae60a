# SPDX-License-Identifier: Apache-2.0
"""Histories and estimates of the demand of guests over minutes and over a day."""
