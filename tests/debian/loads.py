# SPDX-License-Identifier: Apache-2.0
"""Load in Debian's Nova what its services load of ours, in the ways in which they do."""

from nova import conf
from nova.api.validation.extra_specs import validators
from nova.compute import monitors
from nova.scheduler import filters, weights

PACKAGE = 'nova_numa_pmc.scheduler.'

conf.CONF([], default_config_files=[])
conf.CONF.set_override('compute_monitors', ['cpu.numa_pmc'])
handler = monitors.MonitorHandler(None)
assert [type(monitor).__module__ for monitor in handler.monitors] == [
    'nova_numa_pmc.compute.monitor'
], handler.monitors
weights.HostWeightHandler().get_matching_classes([PACKAGE + 'weigher.NUMAPressureWeigher'])
filters.HostFilterHandler().get_matching_classes([PACKAGE + 'filter.NUMAPressureFilter'])
validators.load_validators()
assert any(name.startswith('numa_pmc:') for name in validators.VALIDATORS)
