"""The commands of `graphopt answer`: each prints a text and returns the exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.graph import GraphError
from graphopt.core.operators import OPERATORS
from graphopt.errors import UserError
from graphopt.problems.solution import Decided
from graphopt.readers.formats.graph_files import save_graph
from graphopt.records.answer_file import load, write
from graphopt.records.packed import label_of
from graphopt.reporting.edit import bisect, both_describe, describe_op, differing, write_veto
from graphopt.reporting.model_view import rule_sheets
from graphopt.reporting.replay import PRICES, check
from graphopt.reporting.stored_case import Case, heads_of, near_graph, open_case
from graphopt.reporting.tables.sheet import Sheet
from graphopt.reporting.tables.terminal import print_sheets
from graphopt.utils.printable import say

SHOWN = 30  # lines of a list, unless all are asked for


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="graphopt answer", description="Read, replay and edit decision files.")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    everything = argparse.ArgumentParser(add_help=False)
    everything.add_argument("--all", action="store_true", help=f"list every op, not the first {SHOWN}")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, lists: bool = False
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, parents=[everything] if lists else [])
        command.add_argument("file", type=Path, metavar="FILE", help="a decisions/*.npz, or STUDY/answers.zip#DIGEST")
        command.set_defaults(run=run)
        return command

    add("show", _show, "what was decided and what it costs; the ops that differ from the default", lists=True)
    diff = add("diff", _diff, "ops whose choice differs between two decisions of one graph", lists=True)
    diff.add_argument("other", type=Path, metavar="OTHER")
    add("replay", _replay, "price again; exit 1 when a stored price does not come out")
    change = add("veto", _veto, "set a single op by hand, price again, write a new file")
    change.add_argument("change", metavar="OP[=CHOICE]", help="back to the default's choice, or CHOICE, or HEAD:CHOICE")
    change.add_argument("-o", "--out", type=Path, required=True, metavar="OUT")
    add("bisect", _bisect, "find the op (or the minimal set) whose way back to the default gains most", lists=True)
    draw = add("draw", _draw, "draw the plan: graph by kernel or device, Gantt chart, memory, Perfetto trace")
    draw.add_argument("-o", "--out", type=Path, metavar="DIR", help="default: a pictures folder beside the file")
    given = commands.add_parser("price", help=_PRICE, description=_PRICE)
    given.add_argument(
        "file", type=Path, metavar="PLAN.json", help='{"device": {op: device}, "order": [op], "inline": ...}'
    )
    given.add_argument("settings", nargs="*", help="as for run.py, such as dataset=onnx dataset.path=model.onnx")
    given.add_argument("--like", type=Path, metavar="FILE", help="a decision that brings graph, task, machine and cost")
    given.add_argument("--graph", metavar="NAME", help="which graph, where the data set has several")
    given.add_argument("-o", "--out", type=Path, metavar="OUT", help="write a decision file, the graph beside it")
    given.set_defaults(run=_price)
    return result


_PRICE = "price a placement, order or fusions from JSON; what it does not name stays as the default has it"


def _price(args: argparse.Namespace) -> int:
    from graphopt.reporting import given

    if (args.like is None) == (not args.settings):
        raise UserError("say what is priced: --like FILE, or settings such as dataset=onnx dataset.path=model.onnx")
    case = open_case(args.like) if args.like else given.case_of(args.settings, args.graph)
    plan = given.plan_of(given.read_given(args.file), case.graph, case.task)
    decision = given.answer(case, plan, args.file)
    for line in (*given.report(case, plan), price_line(decision)):
        say(line)
    if args.out:
        folder = args.out.resolve().parent / "graphs"
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(folder / f"{case.graph.hash}.npz", case.graph)
        write(args.out, decision)
    return 0


def title_line(answer: Decided) -> str:
    """What was solved, and by what."""
    graph, row = answer.header["graph"], answer.header["row"]
    keys = ("task", "machine", "cost", "judge", "algo", "encoder", "seed", "evals_cap")
    known = ", ".join(f"{key}={row[key]}" for key in keys if row.get(key) is not None)
    return f"{graph['name']} ({graph['ops']:,} ops, {graph['hash']}): {known}"


def _show(args: argparse.Namespace) -> int:
    decision = load(args.file)
    say(title_line(decision))
    say(price_line(decision))
    say("versions: " + ", ".join(f"{name} {text}" for name, text in decision.header["versions"].items() if text))
    for edit in decision.header.get("edits", []):
        say(f"edited by hand: {edit}")
    for label, text in decision.facts():
        say(f"{label}: {text}")
    if rules := list(rule_sheets(decision)):
        print_sheets(rules)
    if decision.described:
        _show_changes(args, decision)
    return 0


def _show_changes(args: argparse.Namespace, decision: Any) -> None:
    ops = decision.changed()
    say(f"{len(ops):,} of {len(decision.op_names):,} ops differ from the default")
    kinds, heads = _kinds(args.file, decision), heads_of(args.file, decision)
    before_after = (decision.default, decision.choices)
    rows = [
        [decision.op_names[op], kinds[op], *(describe_op(decision, heads, choices[op]) for choices in before_after)]
        for op in _cut(ops, args.all)
    ]
    _list("", ["op", "operator", "default", "decision"], rows, len(ops))


def _kinds(file: Path, decision: Any) -> list[str]:
    """Operator of every op, where the graph lies near the file; else nothing."""
    graph = near_graph(file, decision)
    return [""] * len(decision.op_names) if graph is None else [OPERATORS[kind].name for kind in graph.kind]


def price_line(decision: Decided) -> str:
    """Prices in one line, with the gain."""
    prices = decision.prices
    unit = "B" if decision.header["row"].get("objective") == "peak_memory" else "s"
    parts = [f"{key} {prices[key]:.6g} {unit}" for key in PRICES]
    gain = f"{prices['initial'] / prices['judged']:.4f}x the default" if prices["judged"] > 0 else "no ratio"
    noise = f", noise {100 * prices['noise']:.2g} %" if prices["noise"] > 0 else ""
    return ", ".join(parts) + f": {gain}{noise}"


def _cut(ops: np.ndarray, everything: bool) -> np.ndarray:
    return ops if everything else ops[:SHOWN]


def _list(title: str, columns: list[str], rows: list[list[str]], total: int) -> None:
    if rows:
        print_sheets([Sheet(title, columns, rows, left=len(columns), names=1)])
    if total > len(rows):
        say(f"... and {total - len(rows):,} more (--all lists them)")


def _diff(args: argparse.Namespace) -> int:
    a: Any = load(args.file)
    b: Any = load(args.other)
    ops = differing(a, b)
    say(f"{args.file}: {price_line(a)}")
    say(f"{args.other}: {price_line(b)}")
    both, heads = both_describe(a, b), heads_of(args.file, a)
    under = "" if both == list(a.heads) else f" in {', '.join(both)}; the orders of random keys are not compared"
    say(f"{len(ops):,} of {len(a.op_names):,} ops differ{under}")
    kinds = _kinds(args.file, a)
    rows = [
        [a.op_names[op], kinds[op], *(describe_op(d, heads, d.choices[op]) for d in (a, b))]
        for op in _cut(ops, args.all)
    ]
    _list("", ["op", "operator", *(label_of(file) for file in (args.file, args.other))], rows, len(ops))
    return 0


def _replay(args: argparse.Namespace) -> int:
    case = open_case(args.file)
    wrong = check(case)
    for mismatch in wrong:
        say(f"{mismatch.path}: {mismatch.what}")
    if not wrong:
        say(f"{args.file} replays: {price_line(case.decision)}")
    return 1 if wrong else 0


def _veto(args: argparse.Namespace) -> int:
    case = open_case(args.file)
    result = write_veto(case, args.change, args.out)
    if not result.accepted:
        say(f"the task cannot do {args.change} here: the plan stays as it was")
    say(f"{args.file}: {price_line(case.decision)}")
    say(f"{args.out}: {price_line(result.decision)}")
    return 0


def _bisect(args: argparse.Namespace) -> int:
    case = open_case(args.file)
    blame = bisect(case)
    back = "in the same orders with all choices back" if case.decision.plan else "default"
    say(f"price {blame.judged:.6g}, {back} {blame.default:.6g}, {len(blame.ops):,} ops differ from the default")
    if len(blame.culprits):
        names = ", ".join(case.decision.op_names[op] for op in blame.culprits)
        what = "op" if len(blame.culprits) == 1 else "smallest set of ops found"
        gain = 100 * (1 - blame.gained / blame.judged)
        say(f"the {what} that costs: {names} (price {blame.gained:.6g} without, {gain:.3g} % less)")
    else:
        say("no op costs: none that differs from the default gains when it goes back")
    _effects(case, blame.ops, blame.reverted / blame.judged - 1, args.all)
    return 0


def _effects(case: Case, ops: np.ndarray, change: np.ndarray, everything: bool) -> None:
    """Each op alone put back: first those that cost, last those that earn."""
    order = np.argsort(change, kind="stable")
    rows = []
    for i in _cut(order, everything):
        op, choices = ops[i], case.decision.choices[ops[i]]
        operator = OPERATORS[case.graph.kind[op]].name
        words = describe_op(case.decision, case.task.heads, choices)
        rows.append([case.decision.op_names[op], operator, words, f"{100 * change[i]:+.3g} %"])
    columns = ["op", "operator", "decision", "change"]
    _list("price change when the op alone goes back to its default", columns, rows, len(ops))


def _draw(args: argparse.Namespace) -> int:
    from graphopt.reporting.pictures.draw import draw_case

    for file in draw_case(open_case(args.file), args.out or args.file.parent / "pictures"):
        say(f"wrote {file}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """The command line; a user's mistake is one sentence and exit code 1."""
    args = parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except BrokenPipeError:
        raise  # nobody reads on, as in `... | head`: no mistake
    except (UserError, GraphError, OSError) as error:
        say(error, sys.stderr)
        return 1
