"""Placement, order and fusion together against the default and against the three one after another; each task alone
against its heuristics; and how much of the room below the default was taken."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, everywhere, gain, priced, share
from graphopt.reporting.figures.room import shares

LEARNED, SEARCH, SEQUENCE = "run_model", "joint_search", "task_sequence"
OTHERS = ("roofline_search", "local_search", "motif_scan", "joint_search")  # peers with evaluations
HEURISTICS = ("heft", "list_blevel", "inline_all", "xla_priority", "expert", "gp_dfs")

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> list[Figure]:
    """In percent, paired by graph, machine and seed, families counted once; a peer that was run with one seed stands
    against every training. Of each TASK and BUDGET:

    - `TASK_over_default/BUDGET` by `run_model`, and by the search without learning `TASK_search_over_default/BUDGET`;
    - without evaluations `TASK_over_best_heuristic/0` (the best of each graph by its price), `TASK_over_HEURISTIC/0`,
      `TASK_slower_than_default/0` (share of answers);
    - `TASK_over_PEER/BUDGET`, `TASK_over_sequence/BUDGET`, `TASK_search_over_sequence/BUDGET`; `joint_over_sequence`
      and `joint_over_default` are those of the joint task at the largest budget;
    - `share_of_room/TASK` at the largest budget, `share_of_room/TASK/0` without evaluations, by `joint_search`
      `share_of_room/TASK/search`; `room/TASK...`, `with_room/TASK...`.
    """
    placed = [{**row, "graph": f"{row['graph']} on {row['machine']}"} for row in rows]
    tasks = sorted({str(row["task"]) for row in placed})
    found = [figure for task in tasks for figure in _of(task, [row for row in placed if row["task"] == task])]
    last = max((row["evals_cap"] for row in placed), default=0)
    headline = {f"{name}/{last}": name for name in ("joint_over_sequence", "joint_over_default")}
    return found + [replace(figure, name=headline[figure.name]) for figure in found if figure.name in headline]


def _of(task: str, rows: Sequence[Row]) -> Iterator[Figure]:
    family = {row["graph"]: row["family"] for row in rows}
    for budget in sorted({row["evals_cap"] for row in rows}):
        learned, default = priced(rows, LEARNED, budget), _default(rows, budget)
        yield from gain(f"{task}_over_default/{budget}", learned, default, family)
        if not budget:
            yield from share(f"{task}_slower_than_default/0", learned, default, family)
            yield from _over_heuristics(task, rows, learned, family)
            yield from gain(f"{task}_over_roofline_search/0", learned,
                            everywhere(priced(rows, "roofline_search", 0), learned), family)  # fmt: skip
            continue
        search = priced(rows, SEARCH, budget)
        yield from gain(f"{task}_search_over_default/{budget}", search, default, family)
        for peer in OTHERS:
            yield from gain(f"{task}_over_{peer}/{budget}", learned,
                            everywhere(priced(rows, peer, budget), learned), family)  # fmt: skip
        sequence = priced(rows, SEQUENCE, budget)
        yield from gain(f"{task}_over_sequence/{budget}", learned, everywhere(sequence, learned), family)
        yield from gain(f"{task}_search_over_sequence/{budget}", search, sequence, family)
    budgets = sorted({row["evals_cap"] for row in rows if row["algo"] in (LEARNED, SEARCH)})
    for budget in {budgets[0], budgets[-1]} if budgets else ():
        where = task if budget == budgets[-1] else f"{task}/{budget}"
        yield from shares(rows, LEARNED, budget, where)
    yield from shares(rows, SEARCH, budgets[-1] if budgets else 0, f"{task}/search")


def _over_heuristics(task: str, rows: Sequence[Row], learned: Mapping[Key, float],
                     family: Mapping[str, str]) -> Iterator[Figure]:  # fmt: skip
    answers = {name: everywhere(priced(rows, name, 0), learned) for name in HEURISTICS}
    for name, prices in answers.items():
        yield from gain(f"{task}_over_{name}/0", learned, prices, family)
    known = [prices for prices in answers.values() if prices]
    if known:
        best = {key: min(prices.get(key, float("inf")) for prices in known) for key in set().union(*known)}
        yield from gain(f"{task}_over_best_heuristic/0", learned, best, family)


def _default(rows: Sequence[Row], budget: int) -> dict[Key, float]:
    return {(row["graph"], row["seed"]): float(row["initial"]) for row in rows if row["evals_cap"] == budget}
