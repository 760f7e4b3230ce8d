"""The one harness: every optimiser, learned or classical, solves the same problems here, under the same budget."""

import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt.config.build import Parts, stored_config
from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import OPERATOR_ID
from graphopt.errors import DecisionError, NothingFits, RowsFailed, Unmeasured, UserError, writing
from graphopt.problems.capacity import lack_of_memory
from graphopt.problems.cost_model import CostModel, Price, better
from graphopt.problems.optimizer import Solver, solve
from graphopt.problems.problem import Incumbent, Problem
from graphopt.problems.solution import Solution
from graphopt.problems.task import Task
from graphopt.readers.formats.graph_files import load_graph, save_graph
from graphopt.records import answer_file
from graphopt.records.answer_file import read_answer
from graphopt.records.rows import Row, RowFile, key_of
from graphopt.run.cell import Cell, sentence_of
from graphopt.utils.plain_json import places_of_nan
from graphopt.utils.progress import Bar

TRACE_POINTS = 64  # of a row; the decision file has them all
REPLACED = "rows.replaced.jsonl"  # beside the rows: those of graphs that are gone


@dataclass(frozen=True)
class Contender:
    """An optimiser and the row fields that say what it is (algo, encoder, config_hash, params, training cost)."""

    optimizer: Solver[Any]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Arena:
    """What is the same for all contenders."""

    task: Task
    cost: CostModel
    judge: CostModel
    config: Mapping[str, Any]  # resolved, stored with every decision
    facts: Mapping[str, Any] = field(default_factory=dict)  # row fields of the cell
    origins: Mapping[str, str] = field(default_factory=dict)  # graph hash -> the data set it is reported under
    seconds: float | None = None  # cap of each solve
    keeps: bool = True  # graphs, beside the answers


def evaluate(contenders: Sequence[Contender], graphs: Sequence[Graph], arena: Arena, *, budgets: Sequence[int],
             seeds: Sequence[int], rows: RowFile, study_path: Path) -> int:  # fmt: skip
    """A row for every graph, contender, budget and seed that is not in `rows` yet; returns how many failed.

    Decisions go to decisions/ beside the rows, graphs to study_path/graphs. A contender's exception costs its row only.
    """
    cases = [(g, c, b, s) for g in graphs for c in contenders for b in budgets for s in seeds]
    failed, kept = 0, set[str]()
    with Bar("evaluate", len(cases)) as bar:
        for graph, contender, evals, seed in cases:
            if arena.keeps and graph.hash not in kept:
                keep_graph(study_path / "graphs", graph)
                kept.add(graph.hash)
            row = _case_row(graph, contender, arena, evals, seed)
            if _answered(rows.done.get(key_of(row)), rows.path.parent):
                bar.step("done before")
                continue
            row = _attempt(row, graph, contender, arena, rows.path.parent)
            rows.append(row)
            failed += row["status"] == "failed"
            bar.step(_note(row))
    return failed


def _answered(row: Row | None, folder: Path) -> bool:
    """Whether a case was done before, and its answer can still be read; a damaged one is made anew."""
    if row is None:
        return False
    try:
        header, _ = read_answer(folder / str(row.get("decision")))
        return bool(header["graph"]["hash"] == row["graph_hash"])
    except DecisionError:
        return False


def keep_graph(folder: Path, graph: Graph) -> None:
    """The file that answers are replayed with when the data set is gone: written where it is missing or damaged."""
    path = folder / f"{graph.hash}.npz"
    with contextlib.suppress(GraphError):
        if load_graph(path).hash == graph.hash:
            return
    with writing(path):
        save_graph(path, graph)


def _case_row(graph: Graph, contender: Contender, arena: Arena, evals: int, seed: int) -> Row:
    origin = {"dataset": arena.origins[graph.hash]} if graph.hash in arena.origins else {}
    return {
        **arena.facts, **origin, "graph": graph.name, "graph_hash": graph.hash, "family": graph.family,
        "ops": graph.num_ops, **_opaque_ops(graph), "seed": seed, "evals_cap": evals, "seconds_cap": arena.seconds,
        **contender.facts,
    }  # fmt: skip


def _opaque_ops(graph: Graph) -> Row:
    """How many ops nothing is fused with as they are not understood, and of how many the FLOP are not all counted."""
    opaque = int((graph.kind == OPERATOR_ID["opaque"]).sum())
    return {"opaque": opaque, "uncounted": sum("uncounted" in attributes for attributes in graph.attributes)}


def _attempt(row: Row, graph: Graph, contender: Contender, arena: Arena, folder: Path) -> Row:
    try:
        return _of_numbers(_solved_row(row, graph, contender, arena, folder))
    except Unmeasured as error:
        return {**row, "status": "failed", "reason": sentence_of(error)}
    except (MemoryError, UserError):
        raise  # the memory is full, or nothing can be priced: no later case would do better
    except Exception as error:
        if os.environ.get("GRAPHOPT_TRACEBACK") == "1":
            raise
        return {**row, "status": "failed", "reason": sentence_of(error)}


def _of_numbers(row: Row) -> Row:
    """The row. Raises Unmeasured where a number of it is none: nothing may be compared with NaN."""
    wrong = list(places_of_nan(row))
    if wrong:
        raise Unmeasured(
            f"{', '.join(wrong[:5])} came out as no number (NaN); correct the cost model or the graph's sizes"
        )
    return row


def _solved_row(row: Row, graph: Graph, contender: Contender, arena: Arena, folder: Path) -> Row:
    evals, seed = row["evals_cap"], row["seed"]
    problem, spent = solve(
        contender.optimizer, graph, arena.task, arena.cost, evals=evals, seconds=arena.seconds, seed=seed
    )
    problem.settle(arena.judge)
    solution = problem.solution()
    judged, initial = solution.price(arena.judge), solution.default_price(arena.judge)
    problems = solution.violations() + mismatch(problem, arena.cost, judged.cost if arena.judge is arena.cost else None)
    model, made = Path("models") / f"{file_stem(row)}.onnx", None
    if not problems:
        with writing(folder / model):
            made = solution.deliver(folder / model)
    problems += made or []
    row = {
        **row, "evals": problem.evals, "distinct": problem.distinct, "seconds": spent, "initial": initial.cost,
        "searched_initial": problem.initial_cost, "searched": problem.best_cost, "bound": problem.bound,
        "judged": judged.cost, **_measured(judged), "valid": not problems,
        **_status(problem.notes, solution, arena, initial, judged, problems),
        "trace": _points(problem.trace),
        **({"approach": _points(problem.approach)} if problem.approach else {}),
    }  # fmt: skip
    file = Path("decisions") / f"{file_stem(row)}.npz"
    with writing(folder / file):
        answer_file.save(folder / file, problem=problem, judged=judged.cost, row=row, config=arena.config)
    return {**row, "decision": str(file), **({} if made is None else {"model": str(model)})}


def _measured(price: Price) -> Row:
    """What only measured prices have."""
    return {"noise": price.noise, "measurements": price.measurements} if price.measurements else {}


def _status(notes: Sequence[str], solution: Solution, arena: Arena, initial: Price, judged: Price,
            problems: Sequence[str]) -> Row:  # fmt: skip
    """status and reason of a solve."""
    if problems:
        return {"status": "failed", "reason": "; ".join(problems[:3])}
    if math.isfinite(judged.cost):
        return {"status": "ok", "reason": "; ".join([*notes, *_unshown(initial, judged)])}
    why = lack_of_memory(solution.plans, arena.judge, solution.task.machine)
    return {"status": "infeasible", "reason": why or f"the best answer found costs {judged.cost} by {arena.judge.name}"}


def _unshown(initial: Price, judged: Price) -> list[str]:
    """Says so where an answer is lower than the default by no more than noise makes it."""
    if judged.cost >= initial.cost or better(judged, initial):
        return []
    return [f"{100 * (1 - judged.cost / initial.cost):.2g} % less than the default is within the noise of measured "
            f"prices, {100 * judged.noise:.2g} % each"]  # fmt: skip


def mismatch(problem: Problem, cost: CostModel, again: float | None = None) -> list[str]:
    """Whether the plan that is about to be stored is the one that the search priced. again: its price, if known."""
    if not cost.deterministic or not math.isfinite(problem.best_cost):
        return []
    again = problem.solution().price(cost).cost if again is None else again
    agrees = math.isclose(again, problem.best_cost, rel_tol=1e-9)
    return [] if agrees else [f"the stored plan costs {again:.6g}, the search found {problem.best_cost:.6g}"]


def _points(trace: Sequence[Incumbent]) -> list[list[float]]:
    return [[s.evals, s.seconds, s.cost] for s in thinned(trace)]


def thinned(trace: Sequence[Incumbent], points: int = TRACE_POINTS) -> list[Incumbent]:
    """At most `points` steps, the first and the last among them, denser at the start."""
    if len(trace) <= points:
        return list(trace)
    positions = {round((len(trace) - 1) * (i / (points - 1)) ** 1.5) for i in range(points)}
    return [trace[i] for i in sorted(positions)]


def file_stem(row: Row) -> str:
    """A readable and unique name of a decision file."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", str(row["graph"]))[:80]
    return f"{name}-{row['graph_hash'][:6]}-{row['algo']}-e{row['evals_cap']}-s{row['seed']}-{row['config_hash']}"


def _note(row: Row) -> str:
    if row["status"] != "ok":
        return f"{row['graph']} {row['algo']}: {row['status']}, {row['reason']}"
    words = f"{row['graph']} {row['algo']} {row['evals_cap']} evaluations: "
    if not math.isfinite(row["initial"]):
        return words + "fits, as the default does not"
    return words + (f"{row['initial'] / row['judged']:.3f}x" if row["judged"] else "costs nothing")


def evaluate_cell(parts: Parts, cell: Cell) -> None:
    """Evaluates the cell's algorithm and those of `compare` on its split. Raises RowsFailed if a row failed."""
    settings = cell.settings
    graphs, unread = parts.dataset.graphs(settings.split), parts.dataset.unread(settings.split)
    if not graphs and not unread:
        raise UserError(
            f"dataset={parts.dataset.name} has no graphs in split {settings.split!r}; "
            f"give another with split=train|val|test or change the dataset's splits"
        )
    _set_aside_rows_of_others(cell, graphs)
    objective = parts.cost.objective
    arena = Arena(
        parts.task,
        parts.cost,
        parts.judge,
        stored_config(cell.config, parts),
        {**cell.facts(), "objective": objective},
        {graph.hash: parts.dataset.origin(graph) for graph in graphs},
        settings.budget.seconds,
        parts.dataset.kept,
    )
    for name, why in unread.items():
        cell.rows.append({**arena.facts, "graph": name, "status": "failed", "reason": why})
    for name, why in parts.refused.items():
        cell.rows.note({**arena.facts, "algo": name, "encoder": None, "graph": "", "status": "illegal", "reason": why})
    failed = len(unread) + evaluate(
        contenders_of(parts, cell), graphs, arena, budgets=settings.budget.evals, seeds=[settings.seed], rows=cell.rows,
        study_path=cell.study_path,
    )  # fmt: skip
    checkpoint = cell.path / "ckpt" / "best.ckpt"
    cell.log.results(cell.rows.rows, checkpoint if checkpoint.exists() else None)
    if failed:
        first = next(row for row in cell.rows.rows if row.get("status") == "failed")
        raise RowsFailed(f"{failed} rows failed, the first: {first['graph']} with {first['algo']}: {first['reason']}")
    solved = list(cell.rows.done.values())
    if solved and all(row["status"] == "infeasible" for row in solved):
        some = f", in {len(solved)} solves, the first" if len(solved) > 1 else ""
        raise NothingFits(f"{solved[0]['graph']} with {solved[0]['algo']}{some}: {solved[0]['reason']}")
    cell.finish()


def _set_aside_rows_of_others(cell: Cell, graphs: Sequence[Graph]) -> None:
    """Rows of graphs that the split no longer has (its files have changed, say) are no results of this run."""
    present, split = {graph.hash for graph in graphs}, cell.settings.split
    count = cell.rows.set_aside(
        REPLACED, lambda row: row.get("split") == split and row.get("graph_hash") not in present
    )
    if count:
        print(f"{cell.path}: the data set has changed; {count} rows of graphs that it no longer has are in {REPLACED}")


def contenders_of(parts: Parts, cell: Cell) -> list[Contender]:
    """The cell's algorithm first. It keeps the encoder that names the cell; compared ones have none."""
    classical = {"params": 0, "train_evals": 0, "train_seconds": 0.0, "device": "cpu"}
    own = training_facts(parts.algo) if parts.learns else classical
    first = Contender(parts.algo, {**own, "algo": parts.algo.name, "config_hash": cell.hash})
    return [first] + [
        Contender(rival, {**classical, "encoder": None, "algo": rival.name, "config_hash": cell.hash_of(rival.name)})
        for rival in parts.compared
    ]


def training_facts(learner: Any) -> dict[str, Any]:
    """What a learner cost to train, and where it runs."""
    return {
        "params": sum(p.numel() for p in learner.parameters()), "train_evals": learner.train_evals,
        "train_seconds": round(learner.train_seconds, 3), "device": learner.device_name,
    }  # fmt: skip
