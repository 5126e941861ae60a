# SPDX-License-Identifier: Apache-2.0
"""Unit tests: plain unittest classes; no test may depend on how fast the machine is."""

import hypothesis

hypothesis.settings.register_profile('unit', deadline=None)
hypothesis.settings.load_profile('unit')
