# SPDX-License-Identifier: Apache-2.0
"""Read the glossary, and find its excluded words in the names of the package and of the tests.

examples:
  python -m tests.unit.docs.glossary
"""

import ast
import functools
import re
import typing

from tests.fixtures.checkout import TOP

PAGE = TOP / 'doc/source/reference/glossary.rst'
PACKAGE, TESTS = TOP / 'nova_numa_pmc', TOP / 'tests'
#: Not checked: the arena models other projects' schedulers and keeps words of theirs, such as
#: score and consumption, and its options and records have words of their own, such as contender.
ARENA = 'tests/arena/', 'tests/unit/arena/'

_WORD = re.compile(r'[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+')


class Term(typing.NamedTuple):
    """A term; ``excluded`` has the phrases that are not used for it."""

    name: str
    definition: str
    source: str
    excluded: tuple


def terms(text):
    """Return the terms of the page's ``.. glossary::`` directives, in order.

    A term is indented by three spaces, its contents by six; ``:from:`` and ``:not:`` are one line
    each, and the phrases of ``:not:`` are separated by commas.
    """
    terms_, inside = [], False
    for line in text.splitlines():
        if line and not line.startswith(' '):
            inside = line == '.. glossary::'
        elif not inside or not line.strip():
            continue
        elif line.startswith(' ' * 6):
            terms_[-1][1].append(line.strip())
        elif line.startswith(' ' * 3):
            terms_.append((line.strip(), []))
    return [_term(name, lines) for name, lines in terms_]


def _term(name, lines):
    fields = {
        line.split(':', 2)[1]: line.split(':', 2)[2].strip()
        for line in lines
        if line.startswith((':from:', ':not:'))
    }
    definition = ' '.join(line for line in lines if not line.startswith(':'))
    excluded = tuple(
        phrase.strip() for phrase in fields.get('not', '').split(',') if phrase.strip()
    )
    return Term(name, definition, fields.get('from', ''), excluded)


@functools.cache
def words(name):
    """Return the words of an identifier or a phrase, in lower case."""
    return [word.lower() for word in _WORD.findall(name)]


def uses(name, phrase):
    """Return whether an identifier contains a phrase's words in sequence; plurals also count."""
    have, want = words(name), words(phrase)
    return any(
        all(word in (wanted, wanted + 's') for word, wanted in zip(have[at:], want))
        for at in range(len(have) - len(want) + 1)
    )


def defined(path):
    """Yield (line, name) of what a module defines: itself, classes, functions, variables.

    The names of tests are sentences, and left out.
    """
    yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not node.name.startswith('test_'):
                yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def excluded_uses(glossary_terms, directory):
    """Yield (path, line, name, phrase, term) of names that use an excluded phrase."""
    phrases = [(phrase, term.name) for term in glossary_terms for phrase in term.excluded]
    for path in sorted(directory.rglob('*.py')):
        if str(path.relative_to(TOP)).startswith(ARENA):
            continue
        for line, name in sorted(set(defined(path))):
            for phrase, term in phrases:
                if uses(name, phrase):
                    yield path.relative_to(TOP), line, name, phrase, term


def main():
    """Print each use with its location, and the number of different names."""
    names, glossary_terms = set(), terms(PAGE.read_text(encoding='utf-8'))
    for directory in (PACKAGE, TESTS):
        for path, line, name, phrase, term in excluded_uses(glossary_terms, directory):
            names.add(name)
            print(f'{path}:{line}: {name}: "{term}" is not "{phrase}"')
    print(f'{len(names)} different names')


if __name__ == '__main__':
    main()
