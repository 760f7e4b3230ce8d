"""Stored rewriting answers measured whole: the original and the rewritten program by turns in ONNX Runtime.

What a search believes is a sum over ops, each measured alone or computed; here whole programs run. Answers of one
graph that are the same program are measured once. Where the judge measured ops, these are measured a second time as
well, into a table of their own: what remains of a gain then was not luck.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from graphopt.core.errors import UserError
from graphopt.core.utils.plain_json import dumps
from graphopt.hardware.costs.whole_program import Profiled
from graphopt.hardware.measure.environment import processor
from graphopt.hardware.measure.race import Race, race
from graphopt.hardware.measure.target import Ratio
from graphopt.problems.cost_model import CostModel
from graphopt.report.answer import Answer
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.report.tables.table import Table
from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.ir.digests import portable
from graphopt.rewrite.ir.program_builder import with_random_weights
from graphopt.run.config.construct import construct
from graphopt.run.config.stored import node_of

ROWS, TABLE = "end_to_end.jsonl", "ops_again.jsonl"
Found = dict[str, Any]


def measure_all(place: Path) -> Iterator[Found]:
    """A line for every program that the stored answers below a folder hold, also written to `ROWS` there; those that
    are in it already are not measured again. Raises UserError where there is no rewriting answer."""
    folder = place if place.is_dir() else place.parent
    known = {(line["graph_hash"], line["program"]): line for line in _read(folder / ROWS)}
    answers = _answers(place)
    if not answers:
        raise UserError(f"{place} holds no stored answers of task=rewrite; only these are run end to end")
    for (graph, program), rows in answers.items():
        line = known.get((graph, program))
        if line is None:
            line = {"graph": rows[0]["graph"], "graph_hash": graph, "program": program, **_measured(rows[0], folder)}
            with (folder / ROWS).open("a") as file:
                file.write(dumps(line) + "\n")
        yield {**line, "algos": [row["algo"] for row in rows]}


def _answers(place: Path) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """(graph, digest of its best program) -> rows, those of the same graph together."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in read_rows(row_files(place))[0]:
        if row.get("task") == "rewrite" and row.get("status") == "ok" and row.get("decision"):
            answer = _program(row)
            found.setdefault((row["graph_hash"], portable(answer.decided.best)), []).append(row)
    return dict(sorted(found.items(), key=lambda item: str(item[1][0]["graph"])))


def _program(row: Mapping[str, Any]) -> Answer:
    answer = Answer.load(Path(row["_file"]).parent / str(row["decision"]))
    if not answer.solution.task.makes_programs:
        raise UserError(f"{answer.path} holds no program: its row says task=rewrite, the file task={answer.task}")
    return answer


def _measured(row: Mapping[str, Any], folder: Path) -> Found:
    answer = _program(row)
    prices = answer.decided.prices
    line: Found = {"priced": [prices["initial"], prices["judged"]], "engine": f"onnxruntime {version('onnxruntime')}",
                   "processor": processor(), "load": round(os.getloadavg()[0], 2)}  # fmt: skip
    if isinstance(answer.judge, Profiled):  # it measures ops: again, with an empty table
        stored = node_of("judge", answer.decided.header["config"]["judge"], answer.path)
        again: CostModel = construct({**stored, "table": str(folder / TABLE), "environment": None}, "judge")
        line["priced_again"] = [answer.solution.default_price(again).cost, answer.solution.price(again).cost]
    if portable(answer.decided.best) != portable(answer.decided.original):
        line |= asdict(_raced(answer))
    return line


def _raced(answer: Answer) -> Race:
    """Weights are random: they decide nothing about time."""
    original = answer.decided.original
    if original.opaque:
        raise UserError(f"{answer.path} keeps ops that only its model file has; "
                        "give both files to graphopt measure race BEFORE.onnx AFTER.onnx")  # fmt: skip
    before = with_random_weights(original, 0)
    after = replace(answer.decided.best, weights=before.weights)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        for program, file in zip((before, after), files, strict=True):
            save_onnx(program, file)
        return race(*files)


def table(found: list[Found]) -> Table:
    """The table of what `measure_all` found."""
    columns = ["graph", "methods", "priced", "priced again", "before ms", "after ms", "end to end", "noise", "verdict"]
    note = ("priced: original / rewritten by the judge; again: its ops measured a second time. end to end: seconds of "
            "the original over the rewritten program, median of processes with their extremes; noise: the same of "
            "the original and its copy.")  # fmt: skip
    return Table("end to end in ONNX Runtime, one thread", columns, [_cells(line) for line in found], left=2, note=note)


def _cells(line: Found) -> list[str]:
    again = f"{_gain(line['priced_again']):.3f}" if "priced_again" in line else "-"
    start = [line["graph"], ", ".join(line["algos"]), f"{_gain(line['priced']):.3f}", again]
    if "speedup" not in line:
        return [*start, "-", "-", "unchanged", "-", "-"]
    ratios = {key: Ratio(**line[key]) for key in ("speedup", "noise")}
    result = Race(**{**{key: line[key] for key in ("before", "after", "processes", "rounds")}, **ratios})
    return [*start, f"{1e3 * result.before:.3g}", f"{1e3 * result.after:.3g}",
            str(result.speedup), str(result.noise), result.verdict]  # fmt: skip


def _gain(prices: list[float]) -> float:
    return prices[0] / prices[1] if prices[1] else 1.0


def _read(file: Path) -> list[Found]:
    return [json.loads(text) for text in file.read_text().splitlines()] if file.is_file() else []
