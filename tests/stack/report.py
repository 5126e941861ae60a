# SPDX-License-Identifier: Apache-2.0
"""Write the findings of runs as JSON and as one HTML page, side by side."""

import html
import json
import pathlib

from tests.stack import places

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>nova-numa-pmc: the stack</title><style>
body {{ font: 15px/1.4 sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ border: 1px solid #bbb; padding: .2em .6em; text-align: left; vertical-align: top; }}
.failed {{ background: #fdd; }} code {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
</style></head><body><h1>The stack</h1>
{summary}
<h2>Side by side</h2>
{comparison}
{runs}</body></html>
"""
#: Parts of a phase that are reported elsewhere, or are long.
_SHOWN_ELSEWHERE = ('name', 'seconds', 'passed', 'places', 'weighed')


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


def page(runs):
    """Return the HTML of all runs.

    :param runs: list of :func:`scenario.result`
    """
    return PAGE.format(
        summary=_summary(runs), comparison=_comparison(runs), runs=''.join(map(_run, runs))
    )


def write(directory, runs):
    """Write run.json and run.html into a directory."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'run.json').write_text(
        json.dumps({'runs': runs, 'comparison': comparison(runs)}, indent=1, default=str) + '\n'
    )
    (directory / 'run.html').write_text(page(runs))


def _summary(runs):
    return _table(
        ['run', 'result', 'phases passed', 'seconds', 'counters'],
        [
            [
                run['label'],
                _verdict(run),
                f'{sum(p["passed"] for p in run["phases"])} of {len(run["phases"])}',
                run['seconds'],
                'emulated' if run['counters'] else 'none',
            ]
            for run in runs
        ],
        [_verdict(run) for run in runs],
    )


def _comparison(runs):
    labels = [run['label'] for run in runs]
    rows = []
    for phase in comparison(runs):
        figures = phase['figures']
        for name in dict.fromkeys(name for entries in figures.values() for name in entries):
            rows.append(
                [
                    phase['phase'],
                    name,
                    *(figures.get(label, {}).get(name, 'not done') for label in labels),
                ]
            )
    return _table(['phase', 'figure', *labels], rows)


def _run(run):
    phases = _table(
        ['phase', 'seconds', 'result', 'found'],
        [
            [p['name'], p['seconds'], _verdict(p), _other_fields(p, _SHOWN_ELSEWHERE)]
            for p in run['phases']
        ],
        [_verdict(p) for p in run['phases']],
    )
    events = _table(
        ['at, s', 'source', 'message', 'detail'],
        [
            [e['at_s'], e['source'], e['message'], _other_fields(e, ('at_s', 'source', 'message'))]
            for e in run['events']
        ],
    )
    return (
        f'<h2>{html.escape(run["label"])}</h2>\n<h3>Phases</h3>\n{phases}'
        f'<h3>Time line</h3>\n{events}'
    )


def _verdict(entry):
    return 'passed' if entry['passed'] else 'failed'


def _other_fields(entry, left_out):
    """Return the rest of an entry as JSON, or '' if there is nothing."""
    rest = {key: value for key, value in entry.items() if key not in left_out}
    return json.dumps(rest, default=str) if rest else ''


def _table(headings, rows, classes=None):
    def cells(tag, values):
        return ''.join(
            f'<{tag}><code>{html.escape(str(value))}</code></{tag}>'
            if str(value).startswith('{')
            else f'<{tag}>{html.escape(str(value))}</{tag}>'
            for value in values
        )

    body = ''.join(
        f'<tr class="{name}">{cells("td", row)}</tr>\n'
        for row, name in zip(rows, classes or [''] * len(rows))
    )
    return f'<table><tr>{cells("th", headings)}</tr>\n{body}</table>\n'
