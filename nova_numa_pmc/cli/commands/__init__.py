# SPDX-License-Identifier: Apache-2.0
"""nova-numa-rebalance's commands, one module each: ``OPTIONS`` and ``run(args)``."""
