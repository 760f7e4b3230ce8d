"""Lines and tables beside results: measured ops, room prices, and what an outputs folder holds."""

import json
import shutil
from dataclasses import astuple
from pathlib import Path

import yaml

from graphopt.graphs.regal import load_headroom
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.report.command import main
from graphopt.run.cell import Cell
from graphopt.run.records.rows import RowFile

from ..judge import Format, Wrong, spoken
from ..mutate import Draw, damaged, damaged_bytes, json_file, json_text, text_file
from .studies import study


def _lines(rng: Draw, rows: list[object]) -> bytes:
    """JSON lines, one of them damaged, or the text of all."""
    at = rng.randrange(len(rows))
    texts = [json_text(damaged(rng, row)) if i == at else json.dumps(row) for i, row in enumerate(rows)]
    content = ("\n".join(texts) + "\n").encode(errors="surrogatepass")
    if rng.sound or rng.random() < 0.7:
        return content
    return rng.choice((damaged_bytes(rng, content), text_file(rng, content.decode(errors="replace"))))


def write_ops(rng: Draw, folder: Path) -> Path:
    kernel = {"environment": "here", "seconds": 0.5, "spread": 0.1, "blocks": 7}
    ratio = {
        "default": "op0",
        "environment": "here",
        "seconds": 1.0,
        "ratio": 0.5,
        "noise": 0.1,
        "rounds": 9,
        "aa": 1.01,
    }
    failure = {"digest": "op2", "default": "op0", "environment": "here", "failure": "it does not compile"}
    rows = [*({"op": f"op{i}"} | kernel for i in range(3)), *({"digest": f"op{i}"} | ratio for i in range(2)), failure]
    (folder / "ops.jsonl").write_bytes(_lines(rng, [*rows]))
    return folder / "ops.jsonl"


def read_ops(file: Path) -> None:
    """Whatever is found costs a number of seconds; what is added is found again."""
    table = PriceTable(file)
    for op in range(3):
        line = table.find(f"op{op}", "here")
        if line is not None and not 0 <= line["seconds"] < float("inf"):
            raise Wrong(f"op{op} takes {line['seconds']} seconds")
        line = table.find(f"op{op}", "here", "op0")
        if line is not None and "failure" not in line and not (line["seconds"] > 0 and line["noise"] >= 0):
            raise Wrong(f"op{op} takes {line['seconds']} seconds with a noise of {line['noise']}")
    if not all(isinstance(name, str) for name in table.environments()):
        raise Wrong("an environment that is no text")
    with table.turn():
        table.add({"op": "new", "environment": "there", "seconds": 1.0})
    if PriceTable(file).find("new", "there") is None:
        raise Wrong("a line that was added is lost")


def write_headroom(rng: Draw, folder: Path) -> Path:
    reached = {"runtime/layered/50/test": [[1.0, 2.0, 3.0, 2.5], [None, 4, 5, 4]]}
    room = {"recipe": {"graph_seed": 0, "bytes_per_unit": 2e4}, "reached": reached}
    (folder / "room.json").write_bytes(json_file(rng, room))
    return folder / "room.json"


def read_headroom(file: Path) -> None:
    room = load_headroom(file)
    room.check({"graph_seed": 0})
    if any(price != price or price < 0 for rows in room.reached.values() for r in rows for price in astuple(r)):
        raise Wrong("a price that is none")


def write_outputs(rng: Draw, folder: Path) -> Path:
    """A study of which one file is damaged."""
    place = folder / "study"
    shutil.copytree(study(rng.choice(("fusion", "placement"))), place)
    file = rng.choice([*place.rglob("rows.jsonl")] * 3 + [*place.rglob("finished.json"), *place.rglob("config.yaml")])
    text = file.read_text()
    if file.suffix == ".jsonl":
        file.write_bytes(_lines(rng, [json.loads(line) for line in text.splitlines()]))
    else:
        file.write_bytes(json_file(rng, json.loads(text)) if file.suffix == ".json" else text_file(rng, text))
    return place


def read_outputs(place: Path) -> None:
    """Tables in all forms, replay, and whether the cell is finished."""
    config = yaml.safe_load(next(study("fusion").rglob("config.yaml")).read_text())
    for file in place.rglob("rows.jsonl"):
        cell = Cell({**config, "output_dir": str(place.parent), "study": place.name})
        cell.path, cell.rows = file.parent, RowFile(file)
        if cell.finished not in (True, False) or not isinstance(cell.rows.done, dict):
            raise Wrong("it is unknown whether the cell is finished")
    for words in ((), ("--improvement-over", "local"), ("--reach", "local"), ("--replay",)):
        spoken(main, place, *words)


TABLES = (
    Format("op_table", write_ops, read_ops), Format("headroom_prices", write_headroom, read_headroom),
    Format("outputs", write_outputs, read_outputs),
)  # fmt: skip
