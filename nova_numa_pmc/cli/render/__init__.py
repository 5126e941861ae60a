# SPDX-License-Identifier: Apache-2.0
"""Tables, lines, plots and the terminal: what a verb shows, laid out."""
