# SPDX-License-Identifier: Apache-2.0
"""Nova's own services in this process, with the installed package in them.

The wheel in the environment is under test, not the checkout: an editable install has no shim
in Nova's package, and the checkout's metadata may be of another day. So the checkout leaves
``sys.path`` before anything of the package is imported; and the directory changes, as
Placement's migrations (alembic's prepend_sys_path) put ``.`` there again.
"""

import os
import sys

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:] = [path for path in sys.path if os.path.realpath(path or '.') != CHECKOUT]
os.chdir(sys.prefix)

from nova import monkey_patch  # noqa: E402

# Importing it is enough up to Nova 29; later releases want to be told.
if hasattr(monkey_patch, 'patch'):
    monkey_patch.patch()
