"""Programs of XLA as text and protobuf, execution traces of PyTorch, workflows."""

import json
from pathlib import Path
from typing import Any

from tests.graphs.xla_texts import GENERIC, HLO, STABLE_HLO, message, module

from ..judge import Format
from ..mutate import Draw, damaged_bytes, json_file, text_file
from .graphs import read


def text_format(name: str, file: str, *texts: str) -> Format:
    def write(rng: Draw, folder: Path) -> Path:
        (folder / file).write_bytes(text_file(rng, rng.choice(texts)))
        return folder / file

    return Format(name, write, read)


def write_protobuf(rng: Draw, folder: Path) -> Path:
    run = message((4, message((4, 2000))))
    tuning = b"".join(message((1, message((1, module()), (2, i), (3, run)))) for i in range(2))
    (folder / "a.pb").write_bytes(damaged_bytes(rng, rng.choice((module(), tuning))))
    return folder / "a.pb"


def write_trace(rng: Draw, folder: Path) -> Path:
    def side(*numbers: int) -> dict[str, Any]:
        return {"values": [[n, n + rng.randrange(3), 0, 6, 4, "cpu"] for n in numbers],
                "shapes": [[2, 3] for _ in numbers], "types": ["Tensor(float)" for _ in numbers]}  # fmt: skip

    names = ("aten::add_", "aten::relu", "aten::empty", "record")
    nodes = [{"id": i, "name": rng.choice(names), "ctrl_deps": rng.randrange(i),
              "inputs": side(*range(max(1, i - 2), i)),
              "outputs": side(i),
              "attrs": [{"name": "op_schema", "value": rng.choice(("", "aten::add_(Tensor(a!) self) -> Tensor"))}]}
             for i in range(1, rng.randrange(3, 9))]  # fmt: skip
    (folder / "a.json").write_bytes(json_file(rng, {"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    return folder / "a.json"


def write_workflow(rng: Draw, folder: Path) -> Path:
    tasks = [{"name": f"t{i}", "id": f"t{i}", "parents": [f"t{j}" for j in range(i)], "children": [],
              "inputFiles": [f"f{i}"], "outputFiles": [f"f{i + 1}"]} for i in range(rng.randrange(1, 5))]  # fmt: skip
    files = [{"id": f"f{i}", "sizeInBytes": rng.randrange(99)} for i in range(6)]
    runs = [{"id": task["id"], "runtimeInSeconds": rng.random()} for task in tasks]
    whole = {"workflow": {"specification": {"tasks": tasks, "files": files}, "execution": {"tasks": runs}}}
    (folder / "a.json").write_bytes(json_file(rng, json.loads(json.dumps(whole))))
    return folder / "a.json"


XLA = (
    text_format("hlo", "a.hlo", HLO), text_format("stable_hlo", "a.mlir", STABLE_HLO, GENERIC),
    Format("hlo_protobuf", write_protobuf, read), Format("trace", write_trace, read),
    Format("workflow", write_workflow, read),
)  # fmt: skip
