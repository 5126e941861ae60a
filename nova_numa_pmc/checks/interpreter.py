# SPDX-License-Identifier: Apache-2.0
"""Ask the Python that runs one of Nova's services which modules of Nova and of ours it finds.

It may not be the Python that runs this command. With a distribution's Nova, pip installs to
another prefix, and a virtual environment has a Nova of its own or none.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from typing import Any

    from nova_numa_pmc.host.processes import Process

_SHEBANG_MAX_BYTES = 4096
_LIST_MAX, _TEXT_MAX = 1000, 4096

# The script finds packages without importing them: importing Nova runs its code and takes seconds.
_SCRIPT = """
import importlib.machinery, importlib.metadata, importlib.util, json, sys
sys.path[:] = [path for path in sys.path if path]  # not the directory we happen to be in
def paths(*names):
    searched = None
    for depth in range(len(names)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(names[:depth + 1]), searched)
        searched = spec and spec.submodule_search_locations
        if not searched:
            return []
    return list(searched)
points = importlib.metadata.entry_points()
group = "nova.compute.monitors.cpu"
points = points.select(group=group) if hasattr(points, "select") else points.get(group, ())
monitors = paths("nova", "compute", "monitors", "cpu")
shim = importlib.machinery.PathFinder.find_spec(group + ".numa_pmc", monitors or ["/nonexistent"])
ours = importlib.util.find_spec("nova_numa_pmc")
print(json.dumps({"nova": paths("nova"), "monitors": monitors, "shim": shim and shim.origin,
                  "package": ours and ours.origin,
                  "points": sorted([point.name, point.value] for point in points)}))
"""


class InterpreterModules(Record):
    """The modules and entry points that an interpreter finds.

    :param python: path of the interpreter
    :param nova: directories of the package ``nova``; empty: it cannot be imported
    :param monitors: ``nova.compute.monitors.cpu.__path__``
    :param shim: path of the module ``numa_pmc`` in that package; None: there is none
    :param package: path of ``nova_numa_pmc``; None: it cannot be imported
    :param points: (name, target) of each entry point for CPU monitors
    :param problem: why the interpreter could not be queried; empty if it could
    """

    python: str
    nova: tuple[str, ...] = ()
    monitors: tuple[str, ...] = ()
    shim: str | None = None
    package: str | None = None
    points: tuple[tuple[str, str], ...] = ()
    problem: str = ''


def python_of(process: Process | None, script: str = '', root: str = '/') -> str | None:
    """Return the path of the Python that runs a service, or None if it is not found.

    :param process: the service; None: it is not running
    :param script: path of its script if it is not running ('/usr/bin/nova-compute')
    """
    if process is not None:
        # Not /proc/PID/exe: in a virtual environment, that is the Python that it was made from.
        program = process.command[0]
        if os.path.basename(program).startswith('python') and os.path.isabs(program):
            return program
        script = program
    try:
        with open(host_options.path_under_root(root, script), 'rb') as stream:
            line = stream.readline(_SHEBANG_MAX_BYTES)
    except OSError:
        return None
    words = line[2:].decode('utf-8', 'replace').split() if line.startswith(b'#!') else []
    if words and os.path.basename(words[0]).startswith('python') and os.path.isabs(words[0]):
        return words[0]
    return None


def query(
    python: str, owner: tuple[int, int] | None = None, timeout_s: float = 20
) -> InterpreterModules:
    """Query a Python as the user that the service runs as, and return what it found.

    :param owner: (uid, gid) to run the interpreter as, if this process is root, because that user
        may be able to change the interpreter
    """
    identity: dict[str, Any] = {}
    if owner is not None and os.geteuid() == 0:
        identity = {'user': owner[0], 'group': owner[1], 'extra_groups': []}
    try:
        process = subprocess.run(
            [python, '-c', _SCRIPT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd='/',
            timeout=timeout_s,
            env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C'},
            **identity,
        )
        return _parse(python, process.stdout)
    except subprocess.TimeoutExpired:
        return InterpreterModules(python, problem='no answer within %d s' % timeout_s)
    except (OSError, subprocess.SubprocessError) as error:
        return InterpreterModules(python, problem=str(error))
    except (ValueError, RecursionError):
        last_line = process.stderr.decode('utf-8', 'replace').strip().splitlines()[-1:]
        return InterpreterModules(
            python, problem='\n'.join(last_line) or 'exit status %d' % process.returncode
        )


def _parse(python: str, report: bytes) -> InterpreterModules:
    """Return what an interpreter has printed.

    :raises ValueError, RecursionError: it is not what :data:`_SCRIPT` prints
    """
    members = json_values.Members(json.loads(report))
    nova, monitors = (
        tuple(json_values.text(path, _TEXT_MAX) for path in members.sequence(name, _LIST_MAX))
        for name in ('nova', 'monitors')
    )
    shim, package = (
        None if members.get(name) is None else members.text(name, _TEXT_MAX)
        for name in ('shim', 'package')
    )
    points = []
    for point in members.sequence('points', _LIST_MAX):
        name, target = json_values.sequence(point, 2, 2)
        points.append((json_values.text(name, _TEXT_MAX), json_values.text(target, _TEXT_MAX)))
    return InterpreterModules(python, nova, monitors, shim, package, tuple(points))
