"""The commands of `graphopt answer`: each prints a text and returns the exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.errors import UserError
from graphopt.core.graph import I64, GraphError
from graphopt.core.operators import OPERATORS
from graphopt.core.plan import Decisions
from graphopt.core.utils.marks import sizes_of
from graphopt.core.utils.terminal import printable, say
from graphopt.problems.problem import Decided
from graphopt.report.answer import PRICES, Answer, heads_of, near_graph
from graphopt.report.changes import StepPrices, describe_op, differing
from graphopt.report.model_view import rule_tables
from graphopt.report.tables.table import Table, print_tables
from graphopt.run.records.answer_file import load
from graphopt.run.records.packed import label_of

SHOWN = 30  # lines of a list, unless all are asked for


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="graphopt answer", description="Read, replay and edit decision files.")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    everything = argparse.ArgumentParser(add_help=False)
    everything.add_argument("--all", action="store_true", help=f"list every op, not the first {SHOWN}")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, lists: bool = False, aliases: Sequence[str] = ()
    ) -> argparse.ArgumentParser:
        parents = [everything] if lists else []
        command = commands.add_parser(name, help=text, description=text, parents=parents, aliases=aliases)
        command.add_argument("file", type=Path, metavar="FILE", help="a decisions/*.npz, or STUDY/answers.zip#DIGEST")
        command.set_defaults(run=run)
        return command

    add("show", _show, "what was decided and what it costs; the ops that differ from the default", lists=True)
    diff = add("diff", _diff, "ops whose choice differs between two decisions of one graph", lists=True)
    diff.add_argument("other", type=Path, metavar="OTHER")
    add("replay", _replay, "price again; exit 1 when a stored price does not come out")
    change = add("revert", _revert, "set a single op by hand, price again, write a new file", aliases=["veto"])
    change.add_argument("change", metavar="OP[=CHOICE]", help="back to the default's choice, or CHOICE, or HEAD:CHOICE")
    change.add_argument("-o", "--out", type=Path, required=True, metavar="OUT")
    bisect = add("bisect", _bisect, "find what costs or makes outputs wrong: of an answer the op, of a rewritten "
                 "program the step, of MODEL.onnx the optimiser of ONNX Runtime", lists=True)  # fmt: skip
    bisect.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help="fixes an open dimension")
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
    from graphopt.report.plan_file import answer_of, default_answer, plan_of, read_plan

    if (args.like is None) == (not args.settings):
        raise UserError("say what is priced: --like FILE, or settings such as dataset=onnx dataset.path=model.onnx")
    like = Answer.load(args.like) if args.like else default_answer(args.settings, args.graph)
    answer = answer_of(plan_of(read_plan(args.file), like.graph, like.solution.task), like, args.file)
    say(f"makespan {answer.trace.makespan:.9g} s")
    for device, size in zip(answer.machine.devices, answer.trace.peak_bytes.tolist()):
        say(f"peak of {device.name}: {size:,} B")
    say(price_line(answer.decided))
    if args.out:
        answer.save(args.out)
    return 0


def title_line(answer: Decided) -> str:
    """The problem and its method."""
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
    if rules := list(rule_tables(decision)):
        print_tables(rules)
    if decision.replaced:
        ops = decision.replaced[: None if args.all else SHOWN]
        known = ["in the model"] if decision.header.get("sources") else []
        rows = [[printable(op), *(printable(decision.source(op)) for _ in known)] for op in ops]
        _list("ops of the model that were replaced", ["op", *known], rows, len(decision.replaced))
    if decision.described:
        _show_changes(args, decision)
    return 0


def _show_changes(args: argparse.Namespace, decision: Any) -> None:
    ops = decision.changed()
    say(f"{len(ops):,} of {len(decision.op_names):,} ops differ from the default")
    _list_ops(args, ops, [("default", decision, decision.default), ("decision", decision, decision.choices)])


def _list_ops(args: argparse.Namespace, ops: I64, columns: Sequence[tuple[str, Any, Decisions]]) -> None:
    """A line for each op with its operator, where the graph lies near the file, and in words the choices of two columns
    where they differ."""
    (first, decided, one), (second, _, two) = columns
    graph, heads = near_graph(args.file, decided), heads_of(args.file, decided)
    known = ["in the model"] if decided.header.get("sources") else []
    rows = [
        [decided.op_names[op], "" if graph is None else OPERATORS[graph.kind[op]].name,
         *(printable(decided.source(decided.op_names[op])) for _ in known),
         *(describe_op(of, heads, own[op], other[op]) for (_, of, own), other in zip(columns, (two, one)))]
        for op in ops[: None if args.all else SHOWN]
    ]  # fmt: skip
    _list("", ["op", "operator", *known, first, second], rows, len(ops))


def price_line(decision: Decided) -> str:
    """Prices in one line, with the gain."""
    prices = decision.prices
    unit = "B" if decision.header["row"].get("objective") == "peak_memory" else "s"
    parts = [f"{key} {prices[key]:.6g} {unit}" for key in PRICES]
    gain = f"{prices['initial'] / prices['judged']:.4f}x the default" if prices["judged"] > 0 else "no ratio"
    noise = f", noise {100 * prices['noise']:.2g} %" if prices["noise"] > 0 else ""
    return ", ".join(parts) + f": {gain}{noise}"


def _list(title: str, columns: list[str], rows: list[list[str]], total: int) -> None:
    if rows:
        print_tables([Table(title, columns, rows, left=len(columns))])
    if total > len(rows):
        say(f"... and {total - len(rows):,} more (--all lists them)")


def _diff(args: argparse.Namespace) -> int:
    a: Any = load(args.file)
    b: Any = load(args.other)
    ops, both = differing(a, b)
    say(f"{args.file}: {price_line(a)}")
    say(f"{args.other}: {price_line(b)}")
    under = "" if both == list(a.heads) else f" in {', '.join(both)}; the orders of random keys are not compared"
    say(f"{len(ops):,} of {len(a.op_names):,} ops differ{under}")
    _list_ops(args, ops, [(label_of(args.file), a, a.choices), (label_of(args.other), b, b.choices)])
    return 0


def _replay(args: argparse.Namespace) -> int:
    answer = Answer.load(args.file)
    wrong = answer.check()
    for mismatch in wrong:
        say(f"{mismatch.path}: {mismatch.what}")
    if not wrong:
        say(f"{args.file} replays: {price_line(answer.decided)}")
    return 1 if wrong else 0


def _revert(args: argparse.Namespace) -> int:
    answer = Answer.load(args.file)
    edited, accepted = answer.revert(args.change)
    edited.save(args.out)
    if not accepted:
        say(f"the task cannot do {args.change} here: the plan stays as it was")
    say(f"{args.file}: {price_line(answer.decided)}")
    say(f"{args.out}: {price_line(edited.decided)}")
    return 0


def _bisect(args: argparse.Namespace) -> int:
    if args.file.suffix == ".onnx":
        return _bisect_optimisers(args)
    answer = Answer.load(args.file)
    if answer.solution.task.makes_programs:
        return _bisect_steps(answer.step_prices(), args.all)
    found, names = answer.bisect(), answer.choices.op_names
    back = "in the same orders with all choices back" if answer.choices.plan else "default"
    say(f"price {found.judged:.6g}, {back} {found.default:.6g}, {len(found.changed):,} ops differ from the default")
    change, heads, choices = found.reverted / found.judged - 1, answer.solution.task.heads, answer.choices
    if found.worst is None:
        say("no op costs: none that differs from the default gains when it goes back alone")
    else:
        say(f"the op that costs: {names[found.changed[found.worst]]} (price {found.reverted[found.worst]:.6g} without, "
            f"{-100 * change[found.worst]:.3g} % less)")  # fmt: skip
    rows, order = [], np.argsort(change, kind="stable")  # first those that cost, last those that earn
    for i in order[: None if args.all else SHOWN]:
        op = found.changed[i]
        words = describe_op(choices, heads, choices.choices[op], choices.default[op])
        rows.append([names[op], OPERATORS[answer.graph.kind[op]].name, words, f"{100 * change[i]:+.3g} %"])
    title = "price change when the op alone goes back to its default"
    _list(title, ["op", "operator", "decision", "change"], rows, len(found.changed))
    return 0


def _bisect_optimisers(args: argparse.Namespace) -> int:
    from graphopt.hardware.measure.optimisers import TOLERANCE, bisect_optimisers

    found = bisect_optimisers(args.file, sizes_of(args.dim))
    say(f"{1e3 * found.seconds:.4g} ms with all optimisers of ONNX Runtime; {len(found.tried)} act on the model")
    if found.error <= TOLERANCE:
        say(f"no optimiser is wrong: outputs differ by {found.error:.1e} of their largest value at most")
    else:
        why = f"it is {found.breaks.name}" if found.breaks else "no single one is the cause"
        say(f"outputs differ by {found.error:.1e} of their largest value from those without optimisers: {why}")
    if found.slows is None:
        say("no optimiser slows the model beyond the noise")
    else:
        say(f"the optimiser that slows it: {found.slows.name} ({100 * (found.slows.ratio - 1):+.3g} % without)")
    rows = [[one.name, f"{100 * (one.ratio - 1):+.2f} %", f"{100 * one.noise:.2f} %", f"{one.error:.1e}"]
            for one in found.tried[: None if args.all else SHOWN]]  # fmt: skip
    _list("without one optimiser", ["optimiser", "time", "noise", "difference"], rows, len(found.tried))
    return 0


def _bisect_steps(found: StepPrices, everything: bool) -> int:
    say(f"price {found.price[-1]:.6g} after {len(found.rules)} steps, {found.price[0]:.6g} before the first")
    if found.wrong is None:
        same = "no step is wrong: with random weights and inputs the outputs are the original's"
        say(f"outputs were not compared: {found.difference}" if found.difference else same)
    else:
        say(f"the step that is wrong: {found.wrong + 1}, {found.rules[found.wrong]} ({found.difference})")
    if found.worst is None:
        say("no step costs: none adds more to the price than its noise")
    else:
        say(f"the step that costs: {found.worst + 1}, {found.rules[found.worst]} "
            f"({100 * found.change[found.worst]:+.3g} %)")  # fmt: skip
    order = np.argsort(-found.change, kind="stable")  # first those that cost
    rows = [[str(i + 1), found.rules[i], f"{found.price[i + 1]:.6g}", f"{100 * found.change[i]:+.3g} %"]
            for i in order[: None if everything else SHOWN]]  # fmt: skip
    _list("price after each step", ["step", "rule", "price", "change"], rows, len(found.rules))
    return 0


def _draw(args: argparse.Namespace) -> int:
    for file in Answer.load(args.file).draw(args.out or args.file.parent / "pictures"):
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
