# SPDX-License-Identifier: Apache-2.0
"""Check that a service of Nova runs, and with its current configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc import finding
from nova_numa_pmc.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nova_numa_pmc.host.nova_conf import NovaConf
    from nova_numa_pmc.host.services import Process


def check_service(
    name: str, process: Process | None, conf: NovaConf, required: bool, refusal: str = ''
) -> Iterator[Finding]:
    """Check a service.

    :param name: its name ('nova-compute')
    :param process: the service; None: it is not running
    :param conf: its configuration
    :param required: whether it has to be configured even if it is not running
    :param refusal: why a process of its unit is not believed
    """
    if process is None:
        yield Finding(
            '%s-not-running' % name,
            finding.WARNING if refusal else finding.NOTE,
            refusal or '%s is not running here' % name,
            'let root own the file and its directories, and nobody else write to them'
            if refusal
            else 'start it, or use --role to say what to check',
        )
    if not conf.files:
        yield from conf.findings or [
            Finding(
                'nova-conf-missing',
                finding.ERROR if process or required else finding.WARNING,
                'no configuration file of %s found' % name,
                'specify it with --nova-conf',
            )
        ]
    yield from check_restarted(
        process, conf, {path: os.stat(path).st_mtime for path in conf.files}
    )


def check_restarted(
    process: Process | None, conf: NovaConf, changed_s: Mapping[str, float]
) -> Iterator[Finding]:
    """Check that a service has read its configuration files since they last changed.

    :param process: the service; None: it is not running
    :param changed_s: {path: time of the last change [s since the epoch]}
    """
    if process is None or process.started_s is None:
        return
    changed_paths = [path for path in conf.files if changed_s.get(path, 0) > process.started_s]
    if changed_paths:
        yield Finding(
            '%s-not-restarted' % process.name,
            finding.WARNING,
            '%s (pid %d) was started before %s last changed'
            % (process.name, process.pid, ', '.join(changed_paths)),
            'restart %s' % process.name,
            changed_paths[0],
        )
