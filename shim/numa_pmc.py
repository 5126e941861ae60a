# SPDX-License-Identifier: Apache-2.0
"""Provide the monitor where Nova looks for it; the wheel installs this module in Nova's package.

Nova derives a monitor's namespace from the module path of its entry point's target
(MonitorHandler.check_enabled_monitor in nova/compute/monitors/__init__.py), so a target outside
nova.compute.monitors.cpu is not loaded.
"""

from nova_numa_pmc.compute.monitor import Monitor  # noqa: F401
