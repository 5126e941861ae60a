# SPDX-License-Identifier: Apache-2.0
"""Write the services' configuration files, with the options of the operator's guide."""

from tests.stack import guide
from tests.stack.layout import LOOPBACK_SEEN_BY_GUESTS, VENV

REGION, PROJECT, USER = 'RegionOne', 'admin', 'admin'


def ini(sections):
    """Return {section: {option: value}} as a file's text; a list repeats the option."""
    lines = []
    for section, options in sections.items():
        lines.append(f'[{section}]')
        for option, value in options.items():
            values = value if isinstance(value, list) else [value]
            lines += [f'{option} = {item}' for item in values]
        lines.append('')
    return '\n'.join(lines)


def identity(layout, auth_url=None):
    """Return the options with which a service requests a token from Keystone."""
    return {
        'auth_url': auth_url or layout.url('keystone', '/v3'),
        'auth_type': 'password',
        'username': USER,
        'password': layout.password('admin'),
        'project_name': PROJECT,
        'user_domain_id': 'default',
        'project_domain_id': 'default',
        'region_name': REGION,
    }


def _authtoken(layout):
    return {
        **identity(layout),
        'www_authenticate_uri': layout.url('keystone', '/v3'),
        'service_token_roles_required': True,
    }


def keystone(layout):
    return {
        'DEFAULT': {'max_token_size': 255},
        'database': {'connection': layout.database_url('keystone')},
        'token': {'provider': 'fernet', 'expiration': 86400},
        'fernet_tokens': {'key_repository': layout.data / 'fernet-keys'},
        'credential': {'key_repository': layout.data / 'credential-keys'},
        'cache': {'enabled': False},
    }


def placement(layout):
    return {
        'api': {'auth_strategy': 'keystone'},
        'placement': {'randomize_allocation_candidates': True},
        'placement_database': {'connection': layout.database_url('placement')},
        'keystone_authtoken': _authtoken(layout),
    }


def glance(layout):
    return {
        'DEFAULT': {
            'enabled_backends': 'local:file',
            'enabled_import_methods': '[]',
            'node_staging_uri': f'file://{layout.data}/glance-staging',
        },
        'local': {'filesystem_store_datadir': layout.data / 'glance'},
        'glance_store': {'default_backend': 'local'},
        'os_glance_staging_store': {'filesystem_store_datadir': layout.data / 'glance-staging'},
        'os_glance_tasks_store': {'filesystem_store_datadir': layout.data / 'glance-tasks'},
        'database': {'connection': layout.database_url('glance')},
        'paste_deploy': {
            'flavor': 'keystone',
            'config_file': VENV / 'etc/glance/glance-api-paste.ini',
        },
        'keystone_authtoken': _authtoken(layout),
    }


def _nova(layout, host):
    """Return nova.conf of a controller and a compute host, which know this machine as host."""
    to_keystone = identity(layout, layout.url('keystone', '/v3', host))
    return {
        'DEFAULT': {
            'transport_url': layout.transport_url(host),
            # An emulated compute host is slow.
            'rpc_response_timeout': 180,
            'report_interval': 20,
            'service_down_time': 240,
        },
        'oslo_messaging_rabbit': {'heartbeat_timeout_threshold': 180},
        'placement': {**to_keystone, 'endpoint_override': layout.url('placement', host=host)},
        'glance': {**to_keystone, 'endpoint_override': layout.url('glance', host=host)},
        'neutron': {**to_keystone, 'endpoint_override': layout.url('neutron-stand-in', host=host)},
        'service_user': {**to_keystone, 'send_service_user_token': True},
    }


def nova_controller(layout):
    shared = _nova(layout, '127.0.0.1')
    own = {
        'DEFAULT': {**shared['DEFAULT'], 'state_path': layout.data / 'nova'},
        'api_database': {'connection': layout.database_url('nova_api')},
        'database': {'connection': layout.database_url('nova_cell1')},
        'keystone_authtoken': _authtoken(layout),
        'oslo_concurrency': {'lock_path': layout.run / 'locks'},
        'quota': {'instances': -1, 'cores': -1, 'ram': -1},
        'scheduler': {'workers': 1, 'discover_hosts_in_cells_interval': 10},
        'conductor': {'workers': 1},
    }
    return {**shared, **own}


def nova_compute(layout, name, address):
    """Return a compute host's nova.conf before the package is installed.

    :param address: address on the network of the compute hosts, for live migration
    """
    shared = _nova(layout, LOOPBACK_SEEN_BY_GUESTS)
    own = {
        'DEFAULT': {
            **shared['DEFAULT'],
            'host': name,
            'my_ip': address,
            'compute_driver': 'libvirt.LibvirtDriver',
            'state_path': '/var/lib/nova',
            'force_config_drive': False,
            'vif_plugging_timeout': 0,
            'vif_plugging_is_fatal': False,
            'reserved_host_memory_mb': 256,
            'update_resources_interval': 20,
            'resize_confirm_window': 0,
            # The guest does not react to ACPI's button.
            'shutdown_timeout': 5,
        },
        'compute': {'resource_provider_association_refresh': 600},
        'libvirt': {
            'virt_type': 'kvm',
            'cpu_mode': 'none',
            'live_migration_inbound_addr': address,
            'live_migration_uri': 'qemu+tcp://%s/system',
            'live_migration_permit_auto_converge': True,
            'use_virtio_for_bridges': False,
        },
        'oslo_concurrency': {'lock_path': '/var/lib/nova/locks'},
        'nova_sys_admin': {
            'helper_command': '/opt/nova/bin/privsep-helper --config-file /etc/nova/nova.conf'
        },
        'vnc': {'enabled': False},
        'spice': {'enabled': False},
        'serial_console': {'enabled': False},
        'workarounds': {'skip_cpu_compare_on_dest': True},
    }
    return {**shared, **own}


def write(layout, with_package=True):
    """Write every file of the control plane; nova-scheduler's last one is from the guide."""
    files = {
        'keystone.conf': ini(keystone(layout)),
        'placement.conf': ini(placement(layout)),
        'glance-api.conf': ini(glance(layout)),
        'nova.conf': ini(nova_controller(layout)),
        'api-paste.ini': (VENV / 'etc/nova/api-paste.ini').read_text(),
        'scheduler.conf': guide.controller_ini() if with_package else '',
        'scheduler-log.conf': ini({'DEFAULT': {'debug': True, 'logging_debug_format_suffix': ''}}),
    }
    for name, text in files.items():
        path = layout.conf(name)
        path.touch(0o600)
        path.write_text(text)
