# SPDX-License-Identifier: Apache-2.0
import sys

import setuptools

# One module goes into Nova's own package, without an __init__.py beside it: shim/ says why.
# An editable install, which leaves the modules in the checkout, cannot put it there.
SHIM = (
    {}
    if 'editable_wheel' in sys.argv
    else {
        'py_modules': ['nova.compute.monitors.cpu.numa_pmc'],
        'package_dir': {'nova.compute.monitors.cpu': 'shim'},
    }
)

setuptools.setup(setup_requires=['pbr>=5.10.0'], pbr=True, **SHIM)
