# SPDX-License-Identifier: Apache-2.0
"""Unit tests: plain unittest classes, none of which may depend on the speed of the machine."""

import hypothesis

hypothesis.settings.register_profile(
    'unit', deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile('unit')
