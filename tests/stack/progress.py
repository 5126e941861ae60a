# SPDX-License-Identifier: Apache-2.0
"""Read the progress of many servers from Nova's database; its API would slow it down."""

import time

from tests.stack.layout import LOOPBACK, PORTS


class Database:
    """A connection to Nova's database, for servers and hosts."""

    def __init__(self, layout):
        """Connect."""
        import pymysql.cursors

        self._connection = pymysql.connect(
            host=LOOPBACK,
            port=PORTS['mariadb'],
            user='stack',
            password=layout.password('database'),
            database='nova_cell1',
            autocommit=True,
            cursorclass=pymysql.cursors.DictCursor,
        )

    def _rows(self, query):
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall()

    def servers(self):
        """Return servers for which a host was found: uuid, host, vm_state, task_state."""
        return self._rows(
            'SELECT uuid, host, vm_state, task_state FROM instances WHERE deleted = 0'
        )

    def refused(self):
        """Return the ids of servers that no host was found for."""
        return {
            row['uuid']
            for row in self._rows('SELECT uuid FROM nova_cell0.instances WHERE deleted = 0')
        }

    def hosts(self):
        """Return hosts: host, vcpus_used, metrics."""
        return self._rows('SELECT host, vcpus_used, metrics FROM compute_nodes WHERE deleted = 0')

    def promised(self):
        """Return how much of each host's memory Placement has promised, and may promise [MiB].

        :returns: {host: (promised, maximum)}
        """
        memory_mb = 1  # Placement's id of that resource class, the second standard one
        return {
            row['name']: (int(row['used'] or 0), int(row['most']))
            for row in self._rows(
                'SELECT p.name, (i.total - i.reserved) * i.allocation_ratio AS most, '
                '(SELECT SUM(a.used) FROM placement.allocations a '
                'WHERE a.resource_provider_id = p.id AND a.resource_class_id = '
                f'{memory_mb}) AS used FROM placement.resource_providers p '
                'JOIN placement.inventories i ON i.resource_provider_id = p.id '
                f'WHERE i.resource_class_id = {memory_mb}'
            )
        }

    def faults(self):
        """Return what Nova reports about servers that failed, as a list of texts."""
        return [
            row['message']
            for cell in ('nova_cell0', 'nova_cell1')
            for row in self._rows(
                f'SELECT DISTINCT message FROM {cell}.instance_faults WHERE deleted = 0'
            )
        ]


class Progress:
    """The progress of the servers of a round, by polling the database again and again."""

    def __init__(self, database, vcpus):
        """Start before the first request.

        :param vcpus: vCPUs of each server
        """
        self._database, self._vcpus = database, vcpus
        #: {server: (when it had its host, host)}; [(when, {host: vCPUs used})].
        self.claims, self.polls = {}, []
        self.active, self.failed, self.refused = set(), set(), set()

    def poll(self):
        """Query the database once."""
        servers, hosts = self._database.servers(), self._database.hosts()
        self.refused |= self._database.refused()
        now_s = time.time()
        self.polls.append((now_s, {row['host']: row['vcpus_used'] for row in hosts}))
        for row in servers:
            server, host = row['uuid'], row['host']
            if host and self.claims.get(server, (0, None))[1] != host:
                self.claims[server] = now_s, host
            if row['vm_state'] == 'active' and not row['task_state']:
                self.active.add(server)
            if row['vm_state'] == 'error':
                self.failed.add(server)

    def is_complete(self, servers):
        """Return whether each server has a host and is counted there, or has failed."""
        placed = len(self.claims.keys() - self.failed)
        counted = sum(self.polls[-1][1].values())
        answered = self.claims.keys() | self.refused | self.failed
        return answered >= servers and counted >= placed * self._vcpus

    def text(self):
        """Return the progress as text."""
        counted = sum(self.polls[-1][1].values()) // self._vcpus if self.polls else 0
        return (
            f'{len(self.claims)} have a host, {counted} are counted there, {len(self.active)} are '
            f'active, {len(self.refused)} refused, {len(self.failed)} failed'
        )
