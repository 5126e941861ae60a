# SPDX-License-Identifier: Apache-2.0
"""Extract the steps of the operator's guide from its text, so that the stack tests them."""

import re

from tests.stack.layout import CHECKOUT
from tests.stack.service import StackError

NOVA = CHECKOUT / 'doc/source/admin/nova.rst'
INSTALL = CHECKOUT / 'doc/source/install/index.rst'
AGENT = CHECKOUT / 'doc/source/admin/agent.rst'


class GuideError(StackError):
    """The guide has no such section, or the section contains no steps."""


def section(text, heading):
    """Return a document's text between that underlined heading and the next one."""
    lines = text.splitlines()
    underlined = [
        at
        for at, (line, below) in enumerate(zip(lines, lines[1:]))
        if line.strip() and re.fullmatch(r'([=\-~])\1*', below) and len(below) >= len(line)
    ]
    for at, following in zip(underlined, [*underlined[1:], len(lines)]):
        if lines[at] == heading:
            return '\n'.join(lines[at + 2 : following])
    raise GuideError(f'no section {heading!r}')


def blocks(text, marker):
    """Return the indented blocks that follow a line which matches the marker, dedented."""
    dedented, lines = [], text.splitlines()
    for at, line in enumerate(lines):
        if not re.search(marker, line):
            continue
        block = []
        for below in lines[at + 1 :]:
            if below.strip() and not below.startswith(' '):
                break
            block.append(below)
        indents = [len(b) - len(b.lstrip()) for b in block if b.strip()]
        if indents:
            dedented.append('\n'.join(b[min(indents) :] for b in block).strip('\n'))
    return dedented


def _one_ini(heading):
    ini_blocks = blocks(section(NOVA.read_text(), heading), r'^\.\. code-block:: ini$')
    if len(ini_blocks) != 1:
        raise GuideError(f'{NOVA.name}, {heading!r}: {len(ini_blocks)} blocks of nova.conf, not 1')
    return ini_blocks[0] + '\n'


def controller_ini():
    """Return the lines that the guide adds to a controller's nova.conf."""
    return _one_ini('On controllers')


def compute_ini():
    """Return the lines that the guide adds to a compute host's nova.conf."""
    return _one_ini('On compute hosts')


def commands(path, heading):
    """Return a section's shell commands, one per line, without comments."""
    lines = []
    for block in blocks(section(path.read_text(), heading), r'::$'):
        for line in re.sub(r'\\\n\s*', '', block).splitlines():
            command = re.sub(r'\s{2,}#.*', '', line).strip()
            if command and not command.startswith(('[', '#')):
                lines.append(command)
    return lines
