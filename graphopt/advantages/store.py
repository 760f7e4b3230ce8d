"""Collected samples on disk: a folder per graph, one shard per sweep, typed arrays that are mapped into memory.

    NAME-KEY/header.json                 what the samples are of
    NAME-KEY/0-initial-0002/shard.json   evaluations, seconds, commit, and the digest of every array
    NAME-KEY/0-initial-0002/price.npy    and the other arrays of `Samples`, without pickles

Shards appear all at once, so a killed collection leaves whole ones only. KEY is a digest of everything that makes
samples differ: graph, choices, prices, temperature, slots, seed, format.

Shape legend: see graphopt.advantages.gibbs.
"""

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.advantages.gibbs import Samples
from graphopt.core.graph import Graph
from graphopt.core.head import named_counts
from graphopt.errors import UserError
from graphopt.problems.cost_model import CostModel
from graphopt.problems.pricing import Pricing
from graphopt.problems.task import AssignTask
from graphopt.search.walks.moves import slots_in
from graphopt.utils.commit import commit
from graphopt.utils.whole import whole_file, whole_folder

FORMAT = 1  # of the files; a reader refuses others
_ARRAYS = tuple(field.name for field in fields(Samples) if field.name != "evals")
_KINDS = {
    "start": "<i2",
    "row": "<i4",
    "price": "<f8",
    "changed_at": "<i4",
    "changed_entry": "<i4",
    "changed_to": "<i2",
}
_PROBES = 3  # random decisions whose prices tell one cost model from another


@dataclass(frozen=True)
class Store:
    """The samples of one graph."""

    folder: Path

    def header(self) -> dict[str, Any]:
        """Raises UserError when there is none, or it is damaged or of another format."""
        return _read_json(self.folder / "header.json", self.folder)

    def shards(self) -> list[str]:
        """Names of the shards, chain by chain in the order of their sweeps."""
        return sorted(path.parent.name for path in self.folder.glob("[!.]*/shard.json"))

    def write(self, name: str, samples: Samples, seconds: float) -> None:
        """Adds a shard, all or nothing. Raises UserError when the disk does not take it."""
        try:
            with whole_folder(self.folder / name) as place:
                _fill(place, samples, seconds)
        except OSError as error:
            if (self.folder / name / "shard.json").exists():
                return  # another process was faster; its samples are the same
            raise UserError(
                f"cannot write {self.folder / name}: {error.strerror or error}; make room or choose another "
                "algo.collection.folder=..."
            ) from error

    def mend(self) -> None:
        """Removes damaged shards, with a warning: they are collected again, and come out the same."""
        for place in sorted(self.folder.glob("[!.]*/")):
            try:
                self.read(place.name)
            except UserError as error:
                warnings.warn(f"{error}; it is collected again", stacklevel=2)
                shutil.rmtree(place, ignore_errors=True)

    def read(self, name: str) -> Samples:
        """A shard, mapped. Raises UserError when it is damaged."""
        place = self.folder / name
        about = _read_json(place / "shard.json", place)
        try:
            wrong = [array for array in _ARRAYS if _digest(place / f"{array}.npy") != about["digests"][array]]
            if wrong:
                raise ValueError(f"the content of {wrong[0]}.npy does not match its digest")
            arrays = {a: np.load(place / f"{a}.npy", mmap_mode="r", allow_pickle=False) for a in _ARRAYS}
            return Samples(**arrays, evals=int(about["evals"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(place, str(error)) from error


def _fill(folder: Path, samples: Samples, seconds: float) -> None:
    for array in _ARRAYS:
        np.save(folder / f"{array}.npy", getattr(samples, array).astype(_KINDS[array]), allow_pickle=False)
    digests = {array: _digest(folder / f"{array}.npy") for array in _ARRAYS}
    about = {"format": FORMAT, "evals": samples.evals, "seconds": round(seconds, 3), "commit": commit()}
    (folder / "shard.json").write_text(json.dumps({**about, "digests": digests}, indent=1))


def open_store(root: Path, graph: Graph, task: AssignTask, cost: CostModel, how: Mapping[str, Any]) -> Store:
    """The store of a graph below `root`, made if it is not there. how: what else makes samples differ, plain values."""
    about = {
        "format": FORMAT, "graph": {"name": graph.name, "family": graph.family, "hash": graph.hash},
        "ops": graph.num_ops, "slots": len(slots_in(task, graph)),
        "task": {"name": task.name, "heads": named_counts(task.heads)},
        "machine": task.machine.name, "cost": {"name": cost.name, "objective": cost.objective},
        "prices": fingerprint(graph, task, cost), **how,
    }  # fmt: skip
    named = {key: value for key, value in about.items() if key != "graph"} | {"graph": graph.hash}
    key = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", graph.name)[:80]
    store = Store(root / f"{name}-{key}")
    try:
        store.header()
    except UserError:  # not there yet, or damaged: what it says is known
        _write_header(store.folder, {**about, "commit": commit()})
    store.mend()
    return store


def _write_header(folder: Path, about: Mapping[str, Any]) -> None:
    try:
        with whole_file(folder / "header.json") as file:
            file.write(json.dumps(about, indent=1).encode())
    except OSError as error:
        raise UserError(
            f"cannot keep samples in {folder} ({error.strerror or error}); choose another algo.collection.folder=..."
        ) from error


def damaged(place: Path, why: str) -> UserError:
    return UserError(f"samples in {place} are damaged ({why}); the same command collects them again")


def _read_json(path: Path, place: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text())
        stored = about["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(place, f"{path.name}: {error}") from error
    if stored != FORMAT:
        raise damaged(place, f"format {stored}, this version reads {FORMAT}")
    return dict(about)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def fingerprint(graph: Graph, task: AssignTask, cost: CostModel) -> str:
    """What tells this task and cost model from others on this graph: default, slots, and the prices of a few random
    decisions (names alone where prices are measured)."""
    slots, initial = slots_in(task, graph), task.initial(graph)
    digest = hashlib.sha256(initial.tobytes() + slots.op.tobytes() + slots.head.tobytes())
    if cost.deterministic:
        decisions = np.repeat(initial[None], _PROBES + 1, 0)
        rng = np.random.default_rng(0)
        decisions[1:, slots.op, slots.head] = rng.integers(0, slots.choices, (_PROBES, len(slots)))
        digest.update(Pricing(graph, task, cost).decisions(decisions).cost.tobytes())
    return digest.hexdigest()[:16]
