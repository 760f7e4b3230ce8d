"""The leaderboard as one static HTML page, and its raw costs as CSV."""

import csv
import io
from collections.abc import Sequence
from html import escape

from graphopt.leaderboard.contests import Contest
from graphopt.leaderboard.standings import Standing
from graphopt.utils.printable import printable

CSV_NAME, PAGE_NAME = "costs.csv", "index.html"
DASH = "&ndash;"
STYLE = """
:root { color-scheme: light dark; --text: #1d232b; --soft: #59636e; --line: #d5dae0; --page: #ffffff; --band: #f4f6f8;
  --best: #0b6b3a; --bad: #a3261b; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --soft: #9aa5b1; --line: #363d46; --page: #14181d;
  --band: #1d2329; --best: #6fd39b; --bad: #ff9d8f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 80rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 50rem; } .soft, small { color: var(--soft); }
nav a { margin-right: .9rem; display: inline-block; } a { color: inherit; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { background: var(--band); font-weight: 600; } tbody tr:last-child > * { border-bottom: 0; }
.number { text-align: right; white-space: nowrap; } .best { color: var(--best); font-weight: 600; }
.bad { color: var(--bad); } .texts { min-width: 15rem; }
details { margin: .6rem 0; } summary { cursor: pointer; }
li { overflow-wrap: anywhere; }
@media (max-width: 40rem) { .board thead { display: none; }
  .board tr { display: grid; grid-template-columns: 2.2rem 1fr; padding: .3rem 0;
    border-bottom: 1px solid var(--line); }
  .board td { border: 0; padding: .1rem .6rem; } .board td + td { grid-column: 2; text-align: left; min-width: 0; }
  .board [data-is]::before { content: attr(data-is) " "; color: var(--soft); } }
"""


def page(boards: Sequence[tuple[Contest, Sequence[Standing]]], made: str) -> str:
    """boards: each problem with its standings. made: when, and from which commit."""
    links = "".join(f'<a href="#{_id(contest)}">{_text(contest.title)}</a>' for contest, _ in boards)
    parts = "".join(_board(contest, standing) for contest, standing in boards)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>graphopt leaderboard</title><style>{STYLE}</style></head><body>
<h1>graphopt leaderboard</h1>
<p>Every answer is priced again from the decisions in its entry, by the cost model that its problem names, and checked
by independent code. Points of an instance are the lowest cost of all entries over an entry's own; an entry's points are
their mean, with 0 where it has no valid answer ({DASH}). Raw costs: <a href="{CSV_NAME}">{CSV_NAME}</a>.</p>
<p class="soft">{_text(made)}</p><nav>{links}</nav>{parts}</body></html>
"""


def _board(contest: Contest, standings: Sequence[Standing]) -> str:
    lines = "".join(_line(contest, standing) for standing in standings)
    absent = f" {len(contest.absent)} more cannot be priced here." if contest.absent else ""
    return f"""<section id="{_id(contest)}"><h2>{_text(contest.title)}</h2>
<p>{_text(contest.about)}
<span class="soft">{len(contest.instances)} instances of dataset={_text(" or ".join(contest.datasets))}, costs in
{_text(contest.unit)}.{absent}{_equality(contest)}</span></p>
<div class="wide"><table class="board"><thead><tr><th class="number">#</th><th>entry</th><th class="number">points</th>
<th class="number">priced</th><th class="number">best</th><th>budget and hardware</th></tr></thead>
<tbody>{lines}</tbody></table></div>{_costs(contest, standings)}{_refusals(standings)}{_absent(contest)}</section>"""


def _equality(contest: Contest) -> str:
    how = contest.equality
    if how is None:
        return ""
    return (f" Each answer is run against the original on {how.draws} draws of weights and inputs, new for this "
            f"page. They agree where no output differs by more than {how.tolerance:g} of its largest.")  # fmt: skip


def _line(contest: Contest, standing: Standing) -> str:
    entry, words = standing.entry, standing.entry.words
    if entry.refusal:
        return (f'<tr><td class="number">{DASH}</td><td class="texts">{_text(entry.name)}<br><span class="bad">refused'
                f'</span></td><td class="number">{DASH}</td><td></td><td></td><td></td></tr>')  # fmt: skip
    priced = sum(point is not None for point in standing.points.values())
    best = sum(point == 1.0 for point in standing.points.values())
    of = len(contest.instances)
    return (f'<tr><td class="number">{standing.rank}</td><td class="texts">{_text(words["title"])} <small>by '
            f'{_text(words["by"])}</small><br><small>{_text(words["method"])}</small></td>'
            f'<td class="number" data-is="points">{standing.mean:.4f}</td>'
            f'<td class="number" data-is="priced">{priced}/{of}</td>'
            f'<td class="number" data-is="best">{best}</td><td class="texts"><small>{_text(words["budget"])}; '
            f'{_text(words["hardware"])}</small></td></tr>')  # fmt: skip


def _costs(contest: Contest, standings: Sequence[Standing]) -> str:
    shown = [standing for standing in standings if not standing.entry.refusal]
    heads = "".join(f'<th class="number">{_text(s.entry.words["title"])}</th>' for s in shown)
    lines = "".join(
        f'<tr><td>{_text(instance.name)}</td><td class="number">{instance.baseline:.6g}</td>'
        + "".join(_cost(standing, instance.name) for standing in shown) + "</tr>"
        for instance in contest.instances
    )  # fmt: skip
    return f"""<details><summary>Cost of every instance</summary><div class="wide"><table><thead><tr><th>instance</th>
<th class="number">without search</th>{heads}</tr></thead><tbody>{lines}</tbody></table></div></details>"""


def _cost(standing: Standing, instance: str) -> str:
    cost = next((score.cost for score in standing.entry.scores if score.instance == instance), None)
    if cost is None:
        return f'<td class="number">{DASH}</td>'
    best = " best" if standing.points[instance] == 1.0 else ""
    return f'<td class="number{best}">{cost:.6g}</td>'


def _refusals(standings: Sequence[Standing]) -> str:
    lines = []
    for entry in (standing.entry for standing in standings):
        if entry.refusal:
            lines.append(f"{entry.name}: {entry.refusal}")
        lines += [f"{entry.name}, {s.instance}: {s.reason}" for s in entry.scores if s.cost is None]
    if not lines:
        return ""
    items = "".join(f'<li class="bad">{_text(line)}</li>' for line in lines)
    return f"<details open><summary>Not counted: {len(lines)}</summary><ul>{items}</ul></details>"


def _absent(contest: Contest) -> str:
    items = "".join(f"<li>{_text(f'{name}: {why}')}</li>" for name, why in contest.absent.items())
    return f"<details><summary>Instances that are not here</summary><ul>{items}</ul></details>" if items else ""


def costs_csv(boards: Sequence[tuple[Contest, Sequence[Standing]]]) -> str:
    """problem, entry, instance, cost, points, reason; a line for every entry and instance."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["problem", "entry", "instance", "cost", "points", "reason"])
    for contest, standings in boards:
        for standing in standings:
            entry = standing.entry
            if entry.refusal:
                writer.writerow([contest.name, _plain(entry.name), "", "", "", _plain(entry.refusal)])
            for score in entry.scores:
                point = standing.points[score.instance]
                numbers = ["", ""] if score.cost is None else [repr(score.cost), f"{point:.6f}"]
                writer.writerow([contest.name, _plain(entry.name), score.instance, *numbers, _plain(score.reason)])
    return out.getvalue()


def _plain(value: str) -> str:
    """Without what a spreadsheet would take for a formula."""
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _text(value: str) -> str:
    return escape(printable(value))


def _id(contest: Contest) -> str:
    return escape(contest.name, quote=True)
