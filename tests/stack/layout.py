# SPDX-License-Identifier: Apache-2.0
"""The stack's directories, ports and passwords."""

import json
import os
import pathlib
import re
import secrets

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent.parent
VENV = CHECKOUT / '.venv-stack'
LOOPBACK = '127.0.0.1'
#: The name that a lab machine uses for its host's loopback (QEMU's user network).
LOOPBACK_SEEN_BY_GUESTS = '10.0.2.2'
#: Each service's usual port, moved out of the way of a real one.
PORTS = {
    'mariadb': 13306,
    'rabbitmq': 15674,
    'epmd': 14369,
    'rabbitmq-dist': 15675,
    'keystone': 15000,
    'placement': 18778,
    'glance': 19292,
    'nova-api': 18774,
    'neutron-stand-in': 19696,
}


class Layout:
    """The directories of a stack below a root, by default build/stack of the checkout."""

    def __init__(self, root=CHECKOUT / 'build/stack'):
        """Name the directories; make() creates them."""
        self.root = pathlib.Path(root)
        self.etc, self.logs, self.run, self.data = (
            self.root / part for part in ('etc', 'logs', 'run', 'data')
        )

    def name_logs(self, label):
        """Keep logs in a separate directory from now on."""
        words = re.findall('[a-z0-9]+', label.lower())
        self.logs = self.root / '-'.join(['logs', *words])

    def make(self):
        """Make the directories and the passwords, which are kept."""
        for directory in (self.etc, self.logs, self.run, self.data):
            directory.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        path = self.etc / 'passwords.json'
        if not path.exists():
            words = {name: secrets.token_hex(12) for name in ('database', 'messages', 'admin')}
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'w') as file:
                json.dump(words, file)

    def password(self, name):
        """Return the password for 'database', 'messages' or 'admin'."""
        return json.loads((self.etc / 'passwords.json').read_text())[name]

    def conf(self, name):
        """Return the path of a configuration file."""
        return self.etc / name

    def log(self, name):
        """Return the path of a service's log."""
        return self.logs / f'{name}.log'

    def url(self, service, path='', host=LOOPBACK):
        """Return a service's address as seen from this host, or from a lab machine."""
        return f'http://{host}:{PORTS[service]}{path}'

    def database_url(self, name):
        """Return SQLAlchemy's address of a database."""
        return (
            f'mysql+pymysql://stack:{self.password("database")}@{LOOPBACK}:'
            f'{PORTS["mariadb"]}/{name}?charset=utf8'
        )

    def transport_url(self, host=LOOPBACK):
        """Return oslo.messaging's address of RabbitMQ."""
        return f'rabbit://stack:{self.password("messages")}@{host}:{PORTS["rabbitmq"]}/'

    def client_environment(self):
        """Return the environment that python-openstackclient and openstacksdk need."""
        return {
            'OS_AUTH_URL': self.url('keystone', '/v3'),
            'OS_USERNAME': 'admin',
            'OS_PASSWORD': self.password('admin'),
            'OS_PROJECT_NAME': 'admin',
            'OS_USER_DOMAIN_ID': 'default',
            'OS_PROJECT_DOMAIN_ID': 'default',
            'OS_REGION_NAME': 'RegionOne',
            'OS_INTERFACE': 'public',
            'OS_IDENTITY_API_VERSION': '3',
            'OS_COMPUTE_API_VERSION': '2.95',
        }
