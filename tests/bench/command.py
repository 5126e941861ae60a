# SPDX-License-Identifier: Apache-2.0
"""Parse the command lines of the benchmarks that take minutes."""

import argparse


def parser(module, doc):
    """Return an argument parser whose help is a module's docstring.

    :param module: the name it is run by
    :param doc: the docstring; its last part begins with a line ``examples:``
    """
    head, separator, examples = doc.partition('\n\nexamples')
    assert separator, module
    return argparse.ArgumentParser(
        prog=f'python -m {module}',
        description=head,
        epilog='examples' + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
