# SPDX-License-Identifier: Apache-2.0
"""Unit tests: plain unittest classes, none of which may depend on the speed of the machine."""

import hypothesis

hypothesis.settings.register_profile('unit', deadline=None)
hypothesis.settings.load_profile('unit')
