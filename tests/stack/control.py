# SPDX-License-Identifier: Apache-2.0
"""Run the control plane, Keystone, Placement, Glance and Nova's controllers, on loopback."""

import concurrent.futures
import json
import shutil
import sys
import time

from tests.stack import config, guide, infrastructure
from tests.stack.layout import CHECKOUT, LOOPBACK, PORTS, VENV
from tests.stack.service import (
    Service,
    StackError,
    answers_http,
    is_listening,
    print_step,
    run,
    wait,
)

WSGI = {
    'keystone': ('keystone.wsgi.api', {'OS_KEYSTONE_CONFIG_DIR': '{etc}'}),
    'placement': ('placement.wsgi.api', {'OS_PLACEMENT_CONFIG_DIR': '{etc}'}),
    'glance': ('glance.wsgi.api', {'OS_GLANCE_CONFIG_DIR': '{etc}'}),
    # It also reads api-paste.ini there.
    'nova-api': ('nova.wsgi.osapi_compute', {'OS_NOVA_CONFIG_DIR': '{etc}'}),
}
#: Time limits for an answer of a service, and for the first reports of the controllers [s].
API_S, CONTROLLERS_S = 180, 120
CATALOG = {
    'identity': ('keystone', '/v3'),
    'placement': ('placement', ''),
    'image': ('glance', ''),
    'compute': ('nova-api', '/v2.1'),
    'network': ('neutron-stand-in', ''),
}


def _wsgi(layout, name):
    module, variables = WSGI[name]
    options = {
        'bind': f'{LOOPBACK}:{PORTS[name]}',
        'wsgi_app': f'{module}:application',
        'worker_class': 'gthread',
        'workers': 1,
        'threads': 8,
        'timeout': 300,
        # A client that polls every few seconds must not find its connection just closed.
        'keepalive': 75,
        'accesslog': str(layout.log(f'{name}-requests')),
        'control_socket_disable': True,
    }
    path = layout.conf(f'gunicorn-{name}.py')
    path.write_text(''.join(f'{key} = {value!r}\n' for key, value in options.items()))
    # Not with arguments, which the service's own oslo.config would try to parse.
    return Service(
        layout,
        name,
        [VENV / 'bin/gunicorn'],
        ready=lambda: answers_http(layout.url(name, '/')),
        timeout_s=120,
        environment={
            'GUNICORN_CMD_ARGS': f'--config {path}',
            'PYTHONWARNINGS': 'ignore',
            **{key: value.format(etc=layout.etc) for key, value in variables.items()},
        },
    )


def _nova(layout, name, *more):
    words = [
        word for file in ('nova.conf', *more) for word in ('--config-file', layout.conf(file))
    ]
    return Service(
        layout, name, [VENV / 'bin' / name, *words], environment={'PYTHONWARNINGS': 'ignore'}
    )


#: Every service in the order of their start.
NAMES = (
    'mariadb epmd rabbitmq keystone placement glance neutron-stand-in '
    'nova-conductor nova-scheduler nova-api'
).split()


def services(layout):
    """Return every service in the order of their start; make the files that they need."""
    return [
        infrastructure.mariadb(layout),
        *infrastructure.rabbitmq(layout),
        _wsgi(layout, 'keystone'),
        _wsgi(layout, 'placement'),
        _wsgi(layout, 'glance'),
        Service(
            layout,
            'neutron-stand-in',
            [sys.executable, '-m', 'tests.stack.neutron', PORTS['neutron-stand-in']],
            ready=lambda: answers_http(layout.url('neutron-stand-in', '/')),
            environment={'PYTHONPATH': str(CHECKOUT)},
        ),
        _nova(layout, 'nova-conductor'),
        _nova(layout, 'nova-scheduler', 'scheduler.conf', 'scheduler-log.conf'),
        _wsgi(layout, 'nova-api'),
    ]


def _manage(layout, tool, conf, words, *more):
    """Run a service's tool; its words have no spaces, unlike what may follow them."""
    run(
        layout,
        tool,
        [VENV / 'bin' / tool, '--config-file', layout.conf(conf), *words.split(), *more],
        environment={'PYTHONWARNINGS': 'ignore'},
    )


def _fill_keystone(layout):
    def manage(words, *more):
        _manage(layout, 'keystone-manage', 'keystone.conf', words, *more)

    for keys in ('fernet_setup', 'credential_setup'):
        manage(f'{keys} --keystone-user root --keystone-group root')
    manage('db_sync')
    url, password = layout.url('keystone', '/v3'), layout.password('admin')
    manage(
        f'bootstrap --bootstrap-region-id {config.REGION} --bootstrap-public-url {url} '
        f'--bootstrap-internal-url {url} --bootstrap-password',
        password,
    )


def _fill_nova(layout):
    for words in (
        'api_db sync',
        f'cell_v2 map_cell0 --database_connection {layout.database_url("nova_cell0")}',
        'db sync',
        'cell_v2 create_cell --name cell1',
    ):
        _manage(layout, 'nova-manage', 'nova.conf', words)


def _fill_databases(layout):
    """Make every schema, once for each data directory."""
    stamp = layout.data / 'filled'
    if stamp.exists():
        return
    for part in ('glance', 'glance-staging', 'glance-tasks', 'nova'):
        (layout.data / part).mkdir(exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = [
            pool.submit(_fill_keystone, layout),
            pool.submit(_fill_nova, layout),
            pool.submit(_manage, layout, 'placement-manage', 'placement.conf', 'db sync'),
            pool.submit(_manage, layout, 'glance-manage', 'glance-api.conf', 'db_sync'),
        ]
        for future in done:
            future.result()
    stamp.touch()


def connect(layout):
    """Return openstacksdk's connection as the admin."""
    import openstack

    variables = layout.client_environment()
    auth = 'auth_url username password project_name user_domain_id project_domain_id'.split()
    return openstack.connect(
        load_yaml_config=False,
        load_envvars=False,
        auth={key: variables['OS_' + key.upper()] for key in auth},
        region_name=variables['OS_REGION_NAME'],
        interface='public',
        compute_default_microversion=variables['OS_COMPUTE_API_VERSION'],
        api_timeout=API_S,
    )


def _fill_catalog(layout):
    cloud = connect(layout)
    kinds = {service.type for service in cloud.identity.services()}
    for kind, (name, path) in CATALOG.items():
        if kind not in kinds:
            service = cloud.identity.create_service(type=kind, name=name)
            for interface in ('public', 'internal'):
                cloud.identity.create_endpoint(
                    service_id=service.id,
                    interface=interface,
                    url=layout.url(name, path),
                    region_id=config.REGION,
                )
    # Services authenticate as the admin; a token sent along with another one needs the role of a
    # service.
    role = cloud.identity.find_role('service') or cloud.identity.create_role(name='service')
    cloud.identity.assign_project_role_to_user(
        cloud.identity.find_project(config.PROJECT), cloud.identity.find_user(config.USER), role
    )


def has_package(layout):
    """Return whether the running stack was started with the package."""
    try:
        return json.loads(layout.conf('package.json').read_text())
    except FileNotFoundError:
        raise StackError('no stack is up: make stack-up ARGS=--hosts') from None


def _note_package(layout, with_package):
    """Record whether the package is in use; refuse to change that while the stack is up."""
    is_up = any(Service(layout, name).pid() for name in NAMES)
    if is_up and has_package(layout) != with_package:
        raise StackError(
            'the stack is up '
            + ('without' if with_package else 'with')
            + ' the package: make stack-down'
        )
    layout.conf('package.json').write_text(json.dumps(with_package))


def _must_be_free(ordered):
    """Raise StackError if another process listens on one of the stack's ports."""
    for service in ordered:
        port = PORTS.get(service.name)
        if port and not service.pid() and is_listening(port):
            raise StackError(
                f'{service.name}: another process listens on port {port}; '
                'is a stack up in another checkout?'
            )


def _controllers_report(cloud):
    """Return whether conductor and scheduler have reported to Nova that they are alive."""
    services_up = {service.binary for service in cloud.compute.services() if service.state == 'up'}
    return services_up >= {'nova-conductor', 'nova-scheduler'}


def up(layout, with_package=True):
    """Start what does not run; return {step: seconds}."""
    if not (VENV / 'bin/gunicorn').exists():
        raise StackError(f'no {VENV}: make setup-stack')
    layout.make()
    _note_package(layout, with_package)
    config.write(layout, with_package)
    seconds, began = {}, time.monotonic()

    def done(step):
        nonlocal began
        now = time.monotonic()
        seconds[step], began = round(now - began, 1), now
        print_step(f'{step}: {seconds[step]} s')

    ordered = services(layout)
    _must_be_free(ordered)
    first = [s for s in ordered if s.name in ('mariadb', 'epmd', 'rabbitmq')]
    for service in first:
        service.start()
    done('MariaDB and RabbitMQ')
    _fill_databases(layout)
    done('schemas')
    keystone = next(s for s in ordered if s.name == 'keystone')
    keystone.start()
    _fill_catalog(layout)
    done('Keystone and its catalog')
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for result in [pool.submit(s.start) for s in ordered if s not in (*first, keystone)]:
            result.result()
    cloud = connect(layout)
    wait(
        lambda: _controllers_report(cloud),
        CONTROLLERS_S,
        'nova-conductor and nova-scheduler',
        layout.log('nova-scheduler'),
        pause_s=1,
    )
    done('Placement, Glance, Nova')
    if with_package:
        for command in guide.commands(guide.NOVA, 'On controllers'):
            if command.startswith('nova-numa-rebalance '):  # the package is in VENV already
                tool, *words = command.split()
                # A service that is neither a unit nor in a container is not looked for.
                for name in ('nova.conf', 'scheduler.conf'):
                    words += ['--nova-conf', layout.conf(name)]
                run(layout, 'check', [VENV / 'bin' / tool, *words])
                done(command)
    return seconds


def down(layout):
    """Stop every service, the last started first; return the names of those that ran."""
    ended = [name for name in reversed(NAMES) if Service(layout, name).stop()]
    shutil.rmtree(layout.data, ignore_errors=True)
    return ended
