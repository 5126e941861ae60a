# SPDX-License-Identifier: Apache-2.0
"""Nova's own services in this process, with the installed package.

The wheel in the environment is tested, not the checkout: an editable install has no shim in
Nova's package, and the checkout's metadata may be outdated. Therefore the checkout is removed
from ``sys.path`` before anything in the package is imported; and the directory is changed,
because Placement's migrations (alembic's prepend_sys_path) add ``.`` again.
"""

import os
import sys

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:] = [path for path in sys.path if os.path.realpath(path or '.') != CHECKOUT]
os.chdir(sys.prefix)

from nova import monkey_patch  # noqa: E402

# Up to Nova 29, importing it is enough; later releases need the call.
if hasattr(monkey_patch, 'patch'):
    monkey_patch.patch()
