# SPDX-License-Identifier: Apache-2.0
"""Read the agent's options, completed from the host's calibration."""

from __future__ import annotations

from nova_numa_pmc.conf import agent as agent_conf, host_options
from nova_numa_pmc.state import calibration


def read(
    path: str = host_options.PATH, calibration_path: str = calibration.PATH
) -> tuple[agent_conf.AgentOptions, list[str]]:
    """Return the options, and the problems because of which defaults are used.

    :raises OptionsError: the file cannot be read, or a value is invalid
    """
    options = agent_conf.read(path)
    counter_options, problem = calibration.with_host_calibration(
        options.counter_options, calibration_path
    )
    problems = list(options.host_options.problems) + ([problem] if problem else [])
    return options._replace(counter_options=counter_options), problems
