"""The one harness: every optimiser, learned or classical, solves the same problems here, under the same budget."""

import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt.core.errors import DecisionError, NothingFits, RowsFailed, Unmeasured, UserError, writing
from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import OPERATOR_ID
from graphopt.core.utils.plain_json import places_of_nan
from graphopt.core.utils.terminal import Bar
from graphopt.graphs.dataset import Dataset
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.problems.cost_model import CostModel, Price, better, lack_of_memory
from graphopt.problems.optimizer import Solver, solve
from graphopt.problems.problem import Incumbent, Problem, Solution, Task
from graphopt.run.cell import Cell, sentence_of
from graphopt.run.config.build import Parts, build, stored_config
from graphopt.run.records import answer_file
from graphopt.run.records.answer_file import read_answer
from graphopt.run.records.rows import Row, RowFile, key_of

TRACE_POINTS = 64  # of a row; the decision file has them all
REPLACED = "rows.replaced.jsonl"  # beside the rows: those of graphs that are gone


@dataclass(frozen=True)
class Method:
    """An optimiser and its row fields (algo, encoder, config_hash, params, training cost)."""

    optimizer: Solver[Any]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """Shared by all methods."""

    task: Task
    cost: CostModel
    judge: CostModel
    config: Mapping[str, Any]  # resolved, stored with every decision
    facts: Mapping[str, Any] = field(default_factory=dict)  # row fields of the cell
    origins: Mapping[str, str] = field(default_factory=dict)  # graph hash -> the data set it is reported under
    seconds: float | None = None  # cap of each solve
    keeps: bool = True  # graphs, beside the answers


def run_through(cell: Cell, dataset: Dataset | None = None) -> None:
    """Builds the parts of a cell, trains or loads its learner, and makes the rows. dataset: instead of the
    configuration's, where a program holds the graphs. Raises RowsFailed if a row failed."""
    parts = build(cell.config, dataset)
    if parts.learns:
        from graphopt.run.training.train import prepare  # which loads torch

        prepare(parts, cell)
    evaluate_cell(parts, cell)


def evaluate_cell(parts: Parts, cell: Cell) -> None:
    """Evaluates the cell's algorithm and those of `compare` on its split. Raises RowsFailed if a row failed."""
    settings = cell.settings
    graphs, unread = parts.dataset.graphs(settings.split), parts.dataset.unread(settings.split)
    if not graphs and not unread:
        raise UserError(
            f"dataset={parts.dataset.name} has no graphs in split {settings.split!r}; "
            f"give another with split=train|val|test or change the dataset's splits"
        )
    # Rows of graphs that the split no longer has (its files have changed, say) are no results of this run.
    present = {graph.hash for graph in graphs}
    gone = cell.rows.set_aside(
        REPLACED, lambda row: row.get("split") == settings.split and row.get("graph_hash") not in present
    )
    if gone:
        print(f"{cell.path}: the data set has changed; {gone} rows of graphs that it no longer has are in {REPLACED}")
    origins = {graph.hash: parts.dataset.origin(graph) for graph in graphs}
    facts = {**cell.facts(), "objective": parts.cost.objective}
    context = Context(parts.task, parts.cost, parts.judge, stored_config(cell.config, parts), facts, origins,
                      settings.budget.seconds, parts.dataset.kept)  # fmt: skip
    for name, why in unread.items():
        cell.rows.append({**facts, "graph": name, "status": "failed", "reason": why})
    for name, why in parts.refused.items():
        cell.rows.note({**facts, "algo": name, "encoder": None, "graph": "", "status": "illegal", "reason": why})
    asked: dict[str, Any] = {"budgets": settings.budget.evals, "seeds": [settings.seed], "rows": cell.rows}
    failed = len(unread) + evaluate(methods_of(parts, cell), graphs, context, **asked, study_path=cell.study_path)
    checkpoint = cell.path / "ckpt" / "best.ckpt"
    cell.log.results(cell.rows.rows, checkpoint if checkpoint.exists() else None)
    if failed:
        first = next(row for row in cell.rows.rows if row.get("status") == "failed")
        said = "one row failed" if failed == 1 else f"{failed} rows failed, the first"
        raise RowsFailed(f"{said}: {first['graph']} with {first['algo']}: {first['reason']}")
    solved = list(cell.rows.done.values())
    if solved and all(row["status"] == "infeasible" for row in solved):
        some = f", in {len(solved)} solves, the first" if len(solved) > 1 else ""
        raise NothingFits(f"{solved[0]['graph']} with {solved[0]['algo']}{some}: {solved[0]['reason']}")
    cell.finish()


def methods_of(parts: Parts, cell: Cell) -> list[Method]:
    """The cell's algorithm first. It keeps the encoder that names the cell; compared ones have none."""
    classical = {"params": 0, "train_evals": 0, "train_seconds": 0.0, "device": "cpu"}
    own = classical
    if parts.learns:  # the cost of training, and where it runs
        learner: Any = parts.algo
        own = {"params": sum(p.numel() for p in learner.parameters()), "train_evals": learner.train_evals,
               "train_seconds": round(learner.train_seconds, 3), "device": learner.device_name}  # fmt: skip
    first = Method(parts.algo, {**own, "algo": parts.algo.name, "config_hash": cell.hash})
    return [first] + [
        Method(rival, {**classical, "encoder": None, "algo": rival.name, "config_hash": cell.hash_of(rival.name)})
        for rival in parts.compared
    ]


def evaluate(methods: Sequence[Method], graphs: Sequence[Graph], context: Context, *, budgets: Sequence[int],
             seeds: Sequence[int], rows: RowFile, study_path: Path) -> int:  # fmt: skip
    """A row for every graph, method, budget and seed that is not in `rows` yet; returns how many failed.

    Decisions go to decisions/ beside the rows, graphs to the study's graphs/. A method's exception costs its row only.
    """
    cases = [(g, m, b, s) for g in graphs for m in methods for b in budgets for s in seeds]
    failed, kept = 0, set[str]()
    with Bar("evaluate", len(cases)) as bar:
        for graph, method, evals, seed in cases:
            if context.keeps and graph.hash not in kept:
                keep_graph(study_path / "graphs" / f"{graph.hash}.npz", graph)
                kept.add(graph.hash)
            origin = {"dataset": context.origins[graph.hash]} if graph.hash in context.origins else {}
            case = {
                **context.facts, **origin, "graph": graph.name, "graph_hash": graph.hash, "family": graph.family,
                "ops": graph.num_ops,
                "opaque": int((graph.kind == OPERATOR_ID["opaque"]).sum()),  # nothing is fused with these
                "uncounted": sum("uncounted" in attributes for attributes in graph.attributes),  # not all FLOP known
                "seed": seed, "evals_cap": evals, "seconds_cap": context.seconds, **method.facts,
            }  # fmt: skip
            if _answered(rows.done.get(key_of(case)), rows.path.parent):
                bar.step("done before")
                continue
            try:
                row = _solved_row(case, graph, method, context, rows.path.parent)
            except Unmeasured as error:
                row = {**case, "status": "failed", "reason": sentence_of(error)}
            except (MemoryError, UserError):
                raise  # the memory is full, or nothing can be priced: no later case would do better
            except Exception as error:
                if os.environ.get("GRAPHOPT_TRACEBACK") == "1":
                    raise
                row = {**case, "status": "failed", "reason": sentence_of(error)}
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


def keep_graph(path: Path, graph: Graph) -> None:
    """The file that answers are replayed with when the data set is gone: written where it is missing or damaged."""
    with contextlib.suppress(GraphError):
        if load_graph(path).hash == graph.hash:
            return
    with writing(path):
        save_graph(path, graph)


def _solved_row(case: Row, graph: Graph, method: Method, context: Context, folder: Path) -> Row:
    """Solves, prices the answer anew, checks and stores it. Raises Unmeasured where a number of the row is NaN."""
    problem, spent = solve(method.optimizer, graph, context.task, context.cost, evals=case["evals_cap"],
                           seconds=context.seconds, seed=case["seed"])  # fmt: skip
    problem.settle(context.judge)
    solution = problem.solution()
    judged, initial = solution.price(context.judge), solution.default_price(context.judge)
    wrong = solution.violations()
    wrong += mismatch(problem, context.cost, judged.cost if context.judge is context.cost else None)
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", str(case["graph"]))[:80]
    stem = f"{name}-{case['graph_hash'][:6]}-{case['algo']}-e{case['evals_cap']}-s{case['seed']}-{case['config_hash']}"
    model, made = Path("models") / f"{stem}.onnx", None
    if not wrong:
        with writing(folder / model):
            made = solution.deliver(folder / model)
    wrong += made or []
    row = {
        **case, "evals": problem.evals, "distinct": problem.distinct, "seconds": spent, "initial": initial.cost,
        "searched_initial": problem.initial_cost, "searched": problem.best_cost, "bound": problem.bound,
        "judged": judged.cost,
        **({"noise": judged.noise, "measurements": judged.measurements} if judged.measurements else {}),
        "valid": not wrong, **_status(problem, solution, context, initial, judged, wrong),
        "trace": _points(problem.trace),
        **({"approach": _points(problem.approach)} if problem.approach else {}),
    }  # fmt: skip
    file = Path("decisions") / f"{stem}.npz"
    with writing(folder / file):
        answer_file.save(folder / file, problem=problem, judged=judged.cost, row=row, config=context.config)
    row |= {"decision": str(file), **({} if made is None else {"model": str(model)})}
    nan = [*places_of_nan(row)]  # nothing may be compared with NaN
    if nan:
        raise Unmeasured(
            f"{', '.join(nan[:5])} came out as no number (NaN); correct the cost model or the graph's sizes"
        )
    return row


def mismatch(problem: Problem, cost: CostModel, again: float | None = None) -> list[str]:
    """Checks the plan to be stored against the price that the search found. again: its price, if known."""
    if not cost.deterministic or not math.isfinite(problem.best_cost):
        return []
    again = problem.solution().price(cost).cost if again is None else again
    agrees = math.isclose(again, problem.best_cost, rel_tol=1e-9)
    return [] if agrees else [f"the stored plan costs {again:.6g}, the search found {problem.best_cost:.6g}"]


def _status(problem: Problem, solution: Solution, context: Context, initial: Price, judged: Price,
            wrong: Sequence[str]) -> Row:  # fmt: skip
    """status and reason of a solve."""
    if wrong:
        return {"status": "failed", "reason": "; ".join(wrong[:3])}
    if not math.isfinite(judged.cost):
        why = lack_of_memory(solution.plans, context.judge, solution.task.machine)
        usual = f"the best answer found costs {judged.cost} by {context.judge.name}"
        return {"status": "infeasible", "reason": why or usual}
    notes = [*problem.notes]
    if judged.cost < initial.cost and not better(judged, initial):
        notes.append(f"{100 * (1 - judged.cost / initial.cost):.2g} % less than the default is within the noise of "
                     f"measured prices, {100 * judged.noise:.2g} % each")  # fmt: skip
    return {"status": "ok", "reason": "; ".join(notes)}


def _points(trace: Sequence[Incumbent]) -> list[list[float]]:
    return [[s.evals, s.seconds, s.cost] for s in thinned(trace)]


def thinned(trace: Sequence[Incumbent], points: int = TRACE_POINTS) -> list[Incumbent]:
    """At most `points` steps, the first and the last among them, denser at the start."""
    if len(trace) <= points:
        return list(trace)
    positions = {round((len(trace) - 1) * (i / (points - 1)) ** 1.5) for i in range(points)}
    return [trace[i] for i in sorted(positions)]


def _note(row: Row) -> str:
    """A row's note beside the progress bar."""
    if row["status"] != "ok":
        return f"{row['graph']} {row['algo']}: {row['status']}, {row['reason']}"
    words = f"{row['graph']} {row['algo']} {row['evals_cap']} evaluations: "
    if not math.isfinite(row["initial"]):
        return words + "fits, as the default does not"
    return words + (f"{row['initial'] / row['judged']:.3f}x" if row["judged"] else "costs nothing")
