"""What Weights & Biases gets of cells, sweeps, and runs that go on: read from its offline files; no network."""

import json
import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import pytest
import yaml
from commands import command

from graphopt import CONF
from graphopt.core.cli import composed
from graphopt.report.tables.lines import best_known, summarise
from graphopt.report.tables.read_rows import collect

BLOCK = 1 << 15
SMALL = ["dataset=synthetic", "dataset.families=[layered,barabasi_albert]", "dataset.ops=30", "dataset.test=4"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")


def records(file: Path) -> Iterator[Any]:
    """Of an offline run: 7 bytes, then blocks of records (check sum, length, 1 whole, 2 first, 3 middle, 4 last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole, place = whole + data[place + 7 : place + 7 + size], place + 7 + size
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def offline(place: Path) -> list[dict[str, Any]]:
    """Of each offline file below, when all are whole: a run's end is written a moment after it is over."""
    for _ in range(100):
        found = read(place)
        if all(run["exit"] is not None for run in found):
            return found
        time.sleep(0.1)
    raise AssertionError("a run has no end")


def read(place: Path) -> list[dict[str, Any]]:
    """id, tags, config, points of the history, artifacts, exit code."""
    found = []
    for file in sorted(place.rglob("*.wandb")):
        run: dict[str, Any] = {"config": {}, "points": [], "artifacts": [], "exit": None}
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run |= {"id": record.run.run_id, "tags": list(record.run.tags)}
                run["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                items = ((item.key or ".".join(item.nested_key), item.value_json) for item in record.history.item)
                run["points"].append({key: json.loads(value) for key, value in items})
            elif kind == "artifact":
                files = [entry.path for entry in record.artifact.manifest.contents]
                run["artifacts"].append((record.artifact.type, files))
            elif kind == "exit":
                run["exit"] = record.exit.exit_code
        found.append(run)
    return found


def test_a_sweep_is_as_many_runs_as_cells(tmp_path: Path) -> None:
    words = [*SMALL, "algo=local,scan", "budget.evals=[3,9]", "compare=[default]", "logger=wandb"]
    done = command(tmp_path, *words, sweep=True)
    assert done.code == 0, done.err
    command(tmp_path, *words, sweep=True)  # finished cells send nothing
    cells, runs = [*tmp_path.glob("default/*/rows.jsonl")], offline(tmp_path)
    assert len(runs) == len({run["id"] for run in runs}) == len(cells) == 2
    for run in runs:
        algo = run["config"]["algo"]["name"]
        assert set(run["tags"]) == {"task=fusion", f"algo={algo}", "dataset=synthetic", "cost=simulator", "seed=0"}
        assert run["config"]["budget"]["evals"] == [3, 9] and run["exit"] == 0
        numbers = run["points"][-1]
        (cell,) = (file for file in cells if f"-{algo}-" in file.parent.name)
        entries = collect(cell).entries
        for line in summarise(entries, "all", best_known(entries)):
            assert math.isclose(numbers[f"{line.method}/{line.budget:.0f}/speedup"], line.speedup.mean)
        assert numbers["speedup"] == numbers[f"{algo}/9/speedup"] and 0 < numbers["evals"] <= 9
        assert numbers["speedup_families"] >= 1 and numbers["seconds"] > 0 and numbers["results.nrows"] == 16


def test_a_run_that_goes_on_is_one_run_with_every_point_once(tmp_path: Path) -> None:
    from graphopt.run.loggers import WandbLog

    log, config = WandbLog(name="wandb", project="graphopt", mode="offline"), parts_of.config(tmp_path)
    log.open(tmp_path, config)
    log.rewind(-1)
    for step in (1, 2, 3):
        log.metrics(step, {"val/speedup": float(step)})
    log.close(failed=True)
    (first,) = offline(tmp_path)
    assert first["exit"] == 1

    log.open(tmp_path, config)
    log.rewind(2)
    log.metrics(3, {"val/speedup": 30.0})
    (tmp_path / "best.ckpt").write_bytes(b"weights")
    log.results([{"graph": "g", "judged": 1.0, "trace": [[0, 0, 1]]}], tmp_path / "best.ckpt")
    log.close(failed=False)
    (run,) = offline(tmp_path)
    assert run["id"] == first["id"] and run["exit"] == 0 and run["config"]["cost"]["factor"] == 1.0
    points = {p["train_steps"]: p["val/speedup"] for p in run["points"] if "val/speedup" in p}
    assert points == {1: 1.0, 2: 2.0, 3: 30.0} and len(run["points"]) == 4
    assert ("model", ["best.ckpt"]) in run["artifacts"]

    (tmp_path / "other").mkdir()
    log.open(tmp_path / "other", config)
    log.close(failed=False)
    assert len({run["id"] for run in offline(tmp_path)}) == 2


def test_the_agent_can_run_the_sweep_file() -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    sweep = yaml.safe_load((CONF / "sweep.yaml").read_text())
    assert (CONF.parent / sweep["program"]).is_file()
    drawn = {key: {"value": one.get("value", one.get("values", [one.get("min")])[0])}
             for key, one in sweep["parameters"].items()}  # fmt: skip
    words = create_sweep_command_args({"args": drawn})["args_no_hyphens"]
    config = composed([*(word for word in sweep["command"] if "$" not in word), *words])
    assert config["logger"]["mode"] == "online" and config["split"] == "val"
    assert config["algo"]["learning"]["rate"] == 1e-4
