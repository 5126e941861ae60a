# SPDX-License-Identifier: Apache-2.0
"""Write the findings of runs as JSON, with the places of guests side by side."""

import json
import pathlib

from tests.stack import places


def comparison(runs):
    """Return [{'phase', 'figures': {label: :func:`places.figures`}}] about guests' places."""
    by_phase = {}
    for run in runs:
        for phase in run['phases']:
            if phase.get('places'):
                by_phase.setdefault(phase['name'], {})[run['label']] = places.figures(
                    phase['places']
                )
    return [{'phase': name, 'figures': figures} for name, figures in by_phase.items()]


def write(directory, runs):
    """Write run.json into a directory.

    :param runs: list of :func:`scenario.result`
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'run.json').write_text(
        json.dumps({'runs': runs, 'comparison': comparison(runs)}, indent=1, default=str) + '\n'
    )


def lines(runs):
    """Yield the lines of the comparison: each figure of a phase, as it is in each run."""
    for phase in comparison(runs):
        yield f'{phase["phase"]}:'
        for label, figures in phase['figures'].items():
            yield from (f'  {label}: {name}: {figure}' for name, figure in figures.items())
