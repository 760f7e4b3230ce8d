"""Models that a generator of somebody else's made: read, decided about under every task, rewritten, run and compared.

`python -m tests.fuzz.foreign FOLDER` takes a folder of ONNX models, such as `nnsmith_models.py` makes. A model is right
when ONNX Runtime, without optimisations of its own, computes the same from it before and after it is rewritten. Where
ONNX Runtime has no kernel, ONNX's reference implementation stands in.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

TASKS = {
    "fusion": ("algo=local", "budget.evals=[20]"), "placement": ("algo=local", "budget.evals=[20]"),
    "scheduling": ("algo=local", "budget.evals=[20]"), "placement_scheduling": ("algo=heft",),
    "joint": ("algo=local", "budget.evals=[20]"), "rewrite": ("algo=taso", "budget.evals=[30]"),
}  # fmt: skip
BATCH = 250  # models of a run
CLOSE, NUDGES = 1e-3, 3  # of the largest value of an output; other roundings of inputs that are tried
UNEXPECTED = re.compile(r"[A-Z]\w*: ")  # how a reason begins that is no sentence of ours: the type of an exception

Counts = dict[str, Counter[str]]


def imported(file: Path) -> str:
    """What both readers make of a model: read, refused, or the exception that is no sentence."""
    from graphopt.core.graph import GraphError
    from graphopt.graphs.readers.onnx.reader import read_onnx
    from graphopt.rewrite.io.onnx_import import import_onnx

    for read in (read_onnx, import_onnx):
        try:
            read(file)
        except GraphError as error:
            return f"refused: {error}"
        except Exception as error:  # what the harness looks for
            return f"traceback: {type(error).__name__}: {error}"
    return "read"


def decided(task: str, files: Sequence[Path], folder: Path) -> list[dict[str, Any]]:
    """Rows of a run of the command line on these models; what it printed stands in `log.txt`."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    for file in files:
        (folder / "in" / file.name).symlink_to(file.resolve())
    words = [f"task={task}", *TASKS[task], "dataset=onnx", f"dataset.path={folder / 'in'}", f"output_dir={folder}",
             "study=out", "logger=none"]  # fmt: skip
    with (folder / "log.txt").open("w") as log:
        subprocess.run(
            [sys.executable, "-c", "from graphopt.__main__ import main; main()", *words],
            stdout=log,
            stderr=log,
            check=False,
        )
    rows = [line for file in (folder / "out").glob("*/rows.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line) for line in rows]


def outcomes(task: str, files: Sequence[Path], folder: Path) -> Iterator[tuple[str, str, str]]:
    """(model, outcome, why) of every model under a task."""
    rows = {row["graph"]: row for row in decided(task, files, folder)}
    said = (folder / "log.txt").read_text(errors="replace")
    for file in files:
        row = rows.get(file.stem)
        if row is None:
            yield file.stem, "traceback" if "Traceback" in said else "lost", said[-300:]
        elif row["status"] != "ok":
            yield file.stem, "traceback" if UNEXPECTED.match(row["reason"]) else row["status"], row["reason"]
        elif task == "rewrite":
            found = compared(file, next((folder / "out").glob(f"*/{row['model']}")))
            yield file.stem, found, "rewritten" if row["judged"] < row["initial"] else ""
        else:
            yield file.stem, "ok", ""


def compared(before: Path, after: Path) -> str:
    """`same`; `rounding` where another rounding of the inputs changes the original's outputs about as much; `wrong`; or
    `not run` where nothing here runs the original."""
    feeds = _feeds(before)
    for run in (_by_onnxruntime, _by_reference):  # the first has no kernels for some types
        try:
            known, nudged = run(before, feeds), [run(before, _nudged(feeds, seed)) for seed in range(NUDGES)]
        except Exception:  # both have many
            continue
        try:
            found = run(after, feeds)
        except Exception:
            return "wrong"
        if len(known) != len(found) or any(k.shape != f.shape or k.dtype != f.dtype for k, f in zip(known, found)):
            return "wrong"
        apart = [i for i, (k, f) in enumerate(zip(known, found)) if not _gap(k, f) <= CLOSE]
        close = all(_gap(known[i], found[i]) <= 10 * max(_gap(known[i], n[i]) for n in nudged) for i in apart)
        return "wrong" if not close else "rounding" if apart else "same"
    return "not run"


def _nudged(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The same numbers, rounded to about the ten bits that float16 has."""
    rng = np.random.default_rng(seed)
    return {name: (x * rng.uniform(1 - 2**-10, 1 + 2**-10, x.shape)).astype(x.dtype) if x.dtype.kind == "f" else x
            for name, x in feeds.items()}  # fmt: skip


def _by_onnxruntime(file: Path, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _by_reference(file: Path, feeds: dict[str, Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return [np.asarray(made) for made in ReferenceEvaluator(onnx.load(file)).run(None, feeds)]


def _feeds(file: Path) -> dict[str, Any]:
    """Numbers from 1 to 2, which nnsmith's own oracle is run on too."""
    graph, rng = onnx.load(file).graph, np.random.default_rng(0)
    stored = {weight.name for weight in graph.initializer}
    feeds = {}
    for given in graph.input:
        tensor = given.type.tensor_type
        drawn = np.asarray(rng.uniform(1, 2, [d.dim_value for d in tensor.shape.dim]))
        if given.name not in stored:
            feeds[given.name] = drawn.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return feeds


def _gap(known: Any, found: Any) -> float:
    """The largest difference over the largest finite value; infinite where other elements are finite."""
    if known.dtype.kind not in "fc":
        return 0.0 if np.array_equal(known, found) else float("inf")
    wide = np.complex128 if known.dtype.kind == "c" else np.float64
    one, other = known.astype(wide), found.astype(wide)
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(other[finite]).all():
        return float("inf")
    gap = float(np.abs(one[finite] - other[finite]).max(initial=0.0))
    return gap / (float(np.abs(one[finite]).max(initial=0.0)) or 1.0)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.foreign", description=str(__doc__))
    parser.add_argument("folder", type=Path, help="of ONNX models")
    parser.add_argument("--out", type=Path, default=Path("outputs/foreign"), help="where runs and failures go")
    args = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    files = sorted(args.folder.glob("*.onnx"))
    found: dict[str, list[tuple[str, str, str]]] = {"import": []}
    for file in files:
        said, _, why = imported(file).partition(": ")
        found["import"].append((file.stem, said, why))
    good = [file for file, (_, said, _) in zip(files, found["import"]) if said == "read"]
    for task in TASKS:
        found[task] = [one for i in range(0, len(good), BATCH)
                       for one in outcomes(task, good[i : i + BATCH], args.out / f"{task}{i}")]  # fmt: skip
        print(task, dict(Counter(said for _, said, _ in found[task])), flush=True)
    (args.out / "found.json").write_text(json.dumps(found, indent=0))
    kinds = sorted({said for rows in found.values() for _, said, _ in rows})
    print(f"| | models | {' | '.join(kinds)} |\n|---|{'---:|' * (len(kinds) + 1)}")
    for stage, rows in found.items():
        counts = Counter(said for _, said, _ in rows)
        print(f"| {stage} | {len(rows):,} | {' | '.join(f'{counts[kind]:,}' for kind in kinds)} |")
    return int(any(said in ("traceback", "wrong", "lost") for rows in found.values() for _, said, _ in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
