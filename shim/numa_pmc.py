# SPDX-License-Identifier: Apache-2.0
"""Name the monitor where Nova looks for it; the wheel installs this module into Nova's package.

Nova takes a monitor's namespace from the module path of its entry point's target
(MonitorHandler.check_enabled_monitor in nova/compute/monitors/__init__.py), so that a target
outside nova.compute.monitors.cpu is not loaded.
"""

from nova_numa_pmc.compute.monitor import Monitor  # noqa: F401
