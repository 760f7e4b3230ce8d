"""Where curves and results of a run go besides rows.jsonl: nowhere, metrics.csv, or Weights & Biases."""

import csv
import hashlib
import math
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from graphopt.core.errors import writing
from graphopt.core.utils.whole import whole_file


class RunLog:
    """Follows one run, and keeps nothing. `open` comes first, `close` last, also after an error."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        """folder: of the cell. config: resolved, plain containers."""

    def rewind(self, step: int) -> None:
        """Training goes on after that many steps (-1: begins): later points, of a killed run, will come again."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each named curve."""

    def results(self, rows: Sequence[Mapping[str, Any]], checkpoint: Path | None) -> None:
        """The final rows and the best checkpoint, if there is one."""

    def close(self, failed: bool) -> None: ...


class CsvLog(RunLog):
    """metrics.csv in the cell's folder: a line `step,name,value` per point, appended; NaN is no point. A run that goes
    on first drops the points that it will make again, and a line that was cut short."""

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.path = folder / "metrics.csv"

    def rewind(self, step: int) -> None:
        def until(line: bytes) -> bool:
            number = line.partition(b",")[0]
            return number == b"step" or (number.isdigit() and int(number) <= step)

        with writing(self.path):
            if self.path.exists():
                lines = self.path.read_bytes().splitlines(keepends=True)
                with whole_file(self.path) as file:
                    file.writelines(line for line in lines if line.endswith(b"\n") and until(line))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        with writing(self.path), self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if not file.tell():
                writer.writerow(("step", "name", "value"))
            writer.writerows((step, name, value) for name, value in values.items() if not math.isnan(value))


class WandbLog(CsvLog):
    """Weights & Biases, beside metrics.csv. `mode: offline` needs neither network nor login.

    Gets the resolved configuration, choices as tags, the curves by the learner's step, results as numbers (`scalars`)
    and as a table, and the best checkpoint as an artifact. A cell is one run, whose id is of its study and folder.
    Offline, a cell that goes on begins its file anew and sends the curves before again. Online, points that a kill has
    made it make again are sent again. A failed one is closed with exit code 1.
    """

    def __init__(self, *, name: str, project: str, mode: Literal["online", "offline", "disabled"]) -> None:
        import wandb  # which takes a second

        super().__init__(name=name)
        self._wandb = wandb
        self.project, self.mode = project, mode

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().open(folder, config)
        self._split, self._own = str(config["split"]), str(config["algo"]["name"])
        self._behind = self.mode == "offline" and self.path.exists()
        run = hashlib.sha256(f"{config['study']}/{folder.name}".encode()).hexdigest()[:16]
        if self.mode == "offline":
            for earlier in (folder / "wandb").glob(f"offline-run-*-{run}"):
                shutil.rmtree(earlier)
        tags = [f"{group}={config[group]['name']}"[:64] for group in ("task", "algo", "dataset", "cost")]
        self._run = self._wandb.init(
            project=self.project, mode=self.mode, dir=str(folder), name=folder.name, group=str(config["study"]),
            config=dict(config), tags=[*tags, f"seed={config['seed']}"], id=run, resume="allow",
        )  # fmt: skip
        self._run.define_metric("train_steps")
        self._run.define_metric("*", step_metric="train_steps")

    def rewind(self, step: int) -> None:
        super().rewind(step)
        self._catch_up()

    def _catch_up(self) -> None:
        """Sends earlier points of metrics.csv, once."""
        if self._behind:
            self._behind = False
            with writing(self.path), self.path.open(newline="") as file:
                for step, points in groupby(csv.DictReader(file), key=lambda point: point["step"]):
                    values = {point["name"]: float(point["value"]) for point in points}
                    self._run.log({**values, "train_steps": int(step)})

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        super().metrics(step, values)
        self._run.log({**values, "train_steps": step})

    def results(self, rows: Sequence[Mapping[str, Any]], checkpoint: Path | None) -> None:
        self._catch_up()
        columns: list[str | int] = sorted({key for row in rows for key in row if key not in ("trace", "approach")})
        table = self._wandb.Table(columns=columns, data=[[row.get(str(key)) for key in columns] for row in rows])
        self._run.log({**scalars(rows, self._own, self._split), "results": table})
        if checkpoint is not None:
            artifact = self._wandb.Artifact(f"{self._run.id}-best", type="model")
            artifact.add_file(str(checkpoint))
            self._run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)


def scalars(rows: Sequence[Mapping[str, Any]], own: str, split: str) -> dict[str, float]:
    """The results of a cell on a split, named as in a report's table.csv: METHOD/BUDGET/NAME, and NAME alone of its own
    algorithm at the largest budget.

    speedup: initial / judged, geometric mean over graphs; speedup_families: likewise, a family counts once; evals,
    seconds: spent on a graph, mean; train_evals: on training.
    """

    def key(row: Mapping[str, Any]) -> tuple[int, str]:
        return row["evals_cap"], row["algo"]

    found: dict[str, float] = {}
    solved = [row for row in rows if row.get("status") == "ok" and row["split"] == split]
    for (budget, method), group in groupby(sorted(solved, key=key), key=key):
        part, gains = list(group), defaultdict[str, list[float]](list)
        for row in part:
            if row["judged"] > 0 and row["initial"] < math.inf:
                gains[row["family"]].append(math.log(row["initial"] / row["judged"]))
        said = {name: fmean(row[name] for row in part) for name in ("evals", "seconds", "train_evals")}
        if gains:
            said["speedup"] = math.exp(fmean(chain(*gains.values())))
            said["speedup_families"] = math.exp(fmean(map(fmean, gains.values())))
        found |= {f"{method}/{budget}/{name}": value for name, value in said.items()}
        found |= said if method == own else {}
    return found
