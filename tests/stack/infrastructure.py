# SPDX-License-Identifier: Apache-2.0
"""Run MariaDB and RabbitMQ of Debian as instances of the stack's own."""

import pathlib

from tests.stack.layout import LOOPBACK, PORTS
from tests.stack.service import Service, StackError, is_listening, run

DATABASES = ('keystone', 'placement', 'glance', 'nova_api', 'nova_cell0', 'nova_cell1')
RABBITMQ = pathlib.Path('/usr/lib/rabbitmq/bin')


def mariadb(layout):
    """Return MariaDB's service; a new data directory is initialized, old data are kept."""
    data = layout.data / 'mariadb'
    if not (data / 'mysql').is_dir():
        run(
            layout,
            'mariadb-install-db',
            [
                *('mariadb-install-db', '--no-defaults', f'--datadir={data}'),
                *'--user=root --auth-root-authentication-method=normal --skip-test-db'.split(),
            ],
        )
    grants = layout.etc / 'grants.sql'
    lines = [f'CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb3;' for name in DATABASES]
    lines += [
        f"CREATE OR REPLACE USER stack@'{LOOPBACK}' IDENTIFIED BY "
        f"'{layout.password('database')}';",
        f"GRANT ALL ON *.* TO stack@'{LOOPBACK}';",
    ]
    grants.touch(0o600)
    grants.write_text('\n'.join(lines) + '\n')
    return Service(
        layout,
        'mariadb',
        [
            '/usr/sbin/mariadbd',
            '--no-defaults',
            f'--datadir={data}',
            f'--pid-file={data}/mariadbd.pid',
            f'--init-file={grants}',
            f'--bind-address={LOOPBACK}',
            f'--port={PORTS["mariadb"]}',
            *'--user=root --socket=mariadb.sock --skip-name-resolve --max-connections=500'.split(),
            *'--innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0'.split(),
        ],
        ready=lambda: is_listening(PORTS['mariadb']),
    )


def _rabbitmq_environment(layout):
    data = layout.data / 'rabbitmq'
    return {
        'HOME': str(data),
        'RABBITMQ_NODENAME': 'stack@localhost',
        'RABBITMQ_NODE_IP_ADDRESS': LOOPBACK,
        'RABBITMQ_NODE_PORT': str(PORTS['rabbitmq']),
        'RABBITMQ_DIST_PORT': str(PORTS['rabbitmq-dist']),
        'RABBITMQ_MNESIA_BASE': str(data / 'mnesia'),
        'RABBITMQ_LOG_BASE': str(layout.logs),
        'RABBITMQ_LOGS': '-',
        'RABBITMQ_CONFIG_FILE': str(layout.conf('rabbitmq.conf')),
        'RABBITMQ_CONF_ENV_FILE': '/dev/null',
        'RABBITMQ_ENABLED_PLUGINS_FILE': str(layout.conf('rabbitmq-plugins')),
        'RABBITMQ_ADVANCED_CONFIG_FILE': str(layout.conf('rabbitmq-advanced.config')),
        'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': '-kernel inet_dist_use_interface {127,0,0,1}',
        # A port mapper of its own, which ends with RabbitMQ and listens on the loopback only.
        'ERL_EPMD_ADDRESS': LOOPBACK,
        'ERL_EPMD_PORT': str(PORTS['epmd']),
    }


def rabbitmq(layout):
    """Return the services of RabbitMQ and of Erlang's port mapper, in the order of their start."""
    (layout.data / 'rabbitmq').mkdir(exist_ok=True)
    conf = layout.conf('rabbitmq.conf')
    conf.touch(0o600)
    conf.write_text(
        f'default_user = stack\ndefault_pass = {layout.password("messages")}\n'
        f'listeners.tcp.local = {LOOPBACK}:{PORTS["rabbitmq"]}\n'
        'loopback_users = none\nlog.console.level = warning\n'
        'vm_memory_high_watermark.absolute = 512MiB\n'
        'disk_free_limit.absolute = 50MB\n'
    )
    layout.conf('rabbitmq-plugins').write_text('[].\n')
    if not RABBITMQ.is_dir():
        raise StackError(f'no {RABBITMQ}: make setup-stack')
    environment = _rabbitmq_environment(layout)
    return [
        Service(
            layout,
            'epmd',
            ['epmd'],
            ready=lambda: is_listening(PORTS['epmd']),
            environment=environment,
        ),
        Service(
            layout,
            'rabbitmq',
            [RABBITMQ / 'rabbitmq-server'],
            timeout_s=120,
            ready=lambda: is_listening(PORTS['rabbitmq']),
            environment=environment,
        ),
    ]
