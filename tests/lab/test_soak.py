# SPDX-License-Identifier: Apache-2.0
"""A bounded version of `make soak`: the same steps, fewer of them."""

import pytest

from soak import Soak

STEPS = 10      # two looks at everything


@pytest.mark.timeout(900)
def test_random_starts_stops_loads_and_faults(lab):
    """No guest is lost, no promise leaks, every guest is where it was promised."""
    lab.install_hook()
    soak = Soak(lab, seed=11)
    soak.begin()
    try:
        while sum(soak.counts.values()) < STEPS:
            soak.step()
        print(soak.end())
    finally:
        print('\n'.join(soak.agent.journal()[-30:]))
        soak.agent.stop()
