# SPDX-License-Identifier: Apache-2.0
"""Write the time line of a run as JSON and as one HTML page."""

import html
import json
import pathlib

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>nova-numa-pmc: the stack</title><style>
body {{ font: 15px/1.4 sans-serif; margin: 2em auto; max-width: 70em; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ border: 1px solid #bbb; padding: .2em .6em; text-align: left; vertical-align: top; }}
.failed {{ background: #fdd; }} code {{ white-space: pre-wrap; }}
</style></head><body><h1>The stack, {title}</h1>
<h2>Phases</h2><table><tr><th>phase<th>seconds<th>result<th>found</tr>
{phases}</table>
<h2>Time line</h2><table><tr><th>at, s<th>what<th>detail</tr>
{events}</table></body></html>
"""


def page(run):
    """Return a run's HTML: its phases, then its events."""
    def found(entry, *without):
        rest = {key: value for key, value in entry.items() if key not in without}
        return f'<code>{html.escape(json.dumps(rest, default=str))}</code>' if rest else ''

    phases = ''.join(
        f'<tr class="{"passed" if p["passed"] else "failed"}"><td>{html.escape(p["name"])}'
        f'<td>{p["seconds"]}<td>{"passed" if p["passed"] else "failed"}'
        f'<td>{found(p, "name", "seconds", "passed")}</tr>\n' for p in run['phases'])
    events = ''.join(f'<tr><td>{e["at_s"]}<td>{html.escape(e["what"])}'
                     f'<td>{found(e, "at_s", "what")}</tr>\n' for e in run['events'])
    title = 'with the package' if run['with_package'] else 'without the package'
    return PAGE.format(title=title, phases=phases, events=events)


def write(directory, run):
    """Write run.json and run.html into a directory."""
    directory = pathlib.Path(directory)
    (directory / 'run.json').write_text(json.dumps(run, indent=1, default=str) + '\n')
    (directory / 'run.html').write_text(page(run))
