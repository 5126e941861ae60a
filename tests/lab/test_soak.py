# SPDX-License-Identifier: Apache-2.0
"""Run a short version of `make soak`, with each of its actions once."""

import pytest
from soak import Soak


@pytest.mark.full
@pytest.mark.timeout(900)
def test_no_guest_is_lost_in_random_starts_loads_and_faults(lab):
    """No guest is lost, no promise leaks, and every guest is where it was promised."""
    lab.install_hook()
    soak = Soak(lab, seed=11)
    soak.begin()
    try:
        soak.step(soak.start)
        for action in soak.rng.sample(list(soak.actions), len(soak.actions)):
            soak.step(action)
        print(soak.end())
    finally:
        print('\n'.join(soak.agent.journal()[-30:]))
        soak.agent.stop()
