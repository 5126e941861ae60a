# SPDX-License-Identifier: Apache-2.0
"""The verbs of ``nova-numa-rebalance``, a module each: ``configure(parser)`` and ``run(args)``."""
