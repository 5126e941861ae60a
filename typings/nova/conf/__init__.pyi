# SPDX-License-Identifier: Apache-2.0
from oslo_config import cfg

CONF: cfg.ConfigOpts
