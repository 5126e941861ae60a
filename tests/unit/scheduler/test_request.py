# SPDX-License-Identifier: Apache-2.0
"""What a request asks of a host is read from Nova's objects, and an odd request is neutral."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility
from nova_numa_pmc.scheduler import request as subject
from tests.fixtures.nova_stand_ins import request_spec


class Versioned:
    """A stand-in for Nova's objects: reading an unset field raises."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def obj_attr_is_set(self, name):
        return name in self.__dict__

    def __getattr__(self, name):
        raise NotImplementedError(name)


def topology(*cpusets):
    """Build a stand-in for Nova's InstanceNUMATopology, from the unpinned vCPUs of its cells."""
    return Versioned(cells=[Versioned(cpuset=cpuset) for cpuset in cpusets])


class RequestTest(unittest.TestCase):
    def test_a_plain_flavor_asks_for_its_size(self):
        request = subject.read(request_spec(4, 8192))
        self.assertEqual(subject.Guest(4, 8192, model.AUTO, 1.0), request.guest)
        self.assertIsNone(request.why_not_weighed or request.why_pinned)

    def test_wishes_are_taken(self):
        request = subject.read(
            request_spec(
                numa_pmc__policy='one_node',
                numa_pmc__memory_intensity='high',
                numa_pmc__max_pressure='0.5',
            )
        )
        self.assertEqual(('one_node', 3.0), (request.guest.policy, request.guest.intensity))
        self.assertEqual(0.5, request.flavor_specs.max_pressure)

    def test_a_flavor_may_opt_out(self):
        request = subject.read(request_spec(numa_pmc__policy='none'))
        self.assertEqual(eligibility.TEXTS['policy_none'], request.why_not_weighed)

    def test_guests_that_nova_pins_are_known_by_extra_specs_and_by_images(self):
        for request in (
            request_spec(hw__numa_nodes='2'),
            request_spec(hw__cpu_policy='dedicated'),
            request_spec(resources__PCPU='2'),
            request_spec(hw__mem_page_size='large'),
            request_spec(numa_topology=topology({0, 1})),
        ):
            read = subject.read(request)
            self.assertTrue(read.why_pinned)
            self.assertEqual((model.SPREAD, 0), (read.guest.policy, read.guest.memory_mib))

    def test_vcpus_that_nova_dedicates_cpus_to_are_not_charged(self):
        # Nova puts unpinned vCPUs into cpuset, and pinned ones into pcpuset.
        for description, spec, vcpus in (
            ('flavor', request_spec(4, hw__cpu_policy='dedicated'), 0),
            ('resources', request_spec(4, resources__PCPU='4'), 0),
            ('numbered resources', request_spec(4, resources2__PCPU='4'), 0),
            ('image', request_spec(4, numa_topology=topology(set())), 0),
            (
                'mixed',
                request_spec(4, numa_topology=topology({0}, {2}), hw__cpu_policy='mixed'),
                2,
            ),
            ('mixed, saved', request_spec(4, hw__cpu_policy='mixed'), 4),
            ('two nodes', request_spec(4, numa_topology=topology({0, 1}, {2, 3})), 4),
            ('no PCPU', request_spec(4, resources__PCPU='0'), 4),
            ('other resources', request_spec(4, resources__VCPU='4', resources__X_PCPU='4'), 4),
        ):
            with self.subTest(description):
                guest = subject.read(spec).guest
                self.assertEqual(vcpus, guest.vcpus)

    def test_a_guest_with_resources_of_class_pcpu_is_not_said_to_be_pinned_by_its_image(self):
        spec = request_spec(4, numa_topology=topology(set()), resources__PCPU='4')
        self.assertEqual('resources:PCPU=4', subject.read(spec).why_pinned)

    def test_unset_fields_are_not_read(self):
        request = subject.read(Versioned(flavor=Versioned(vcpus=2, memory_mb=2048)))
        self.assertEqual(2, request.guest.vcpus)
        self.assertIsNone(request.instance_uuid)

    def test_an_odd_request_is_neutral(self):
        for request in (None, Versioned(), request_spec(vcpus='x'), request_spec(vcpus=None)):
            self.assertIn('not understood', subject.read(request).why_not_weighed)
