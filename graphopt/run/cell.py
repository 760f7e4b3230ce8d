"""One cell: a resolved configuration and the folder of its results. Errors inside become rows and sentences."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from graphopt.core.errors import (
    HOW,
    Busy,
    Incompatible,
    NothingFits,
    Pruned,
    RowsFailed,
    Unsolved,
    UsageError,
    UserError,
    place_of,
    writing,
)
from graphopt.core.graph import GraphError
from graphopt.core.utils import registry
from graphopt.core.utils.commit import commit
from graphopt.core.utils.marks import NotNegative, Seed, Whole
from graphopt.core.utils.terminal import say
from graphopt.graphs.dataset import Dataset
from graphopt.hardware.measure.price_table import check_place
from graphopt.run.composed import keep_composed, sources_of
from graphopt.run.config.compatibility import encoder_of
from graphopt.run.config.construct import call, construct, convert
from graphopt.run.loggers import RunLog, scalars
from graphopt.run.records.rows import Row, RowFile, digest_of, mark_finished, was_finished
from graphopt.run.sharing import LOCKS, CellOutcome, note_of, write_note

GROUPS = ("dataset", "task", "machine", "cost", "judge", "encoder", "algo", "trainer", "logger")
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, None)  # of a file system without locks
# Keys that may change without making it another experiment: rows have their own values of these.
FREE = ("study", "output_dir", "resume", "budget", "compare", "split", "logger")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Rows are made for every entry of `evals`; `seconds` caps each of them (null: no cap)."""

    evals: list[Whole]
    seconds: NotNegative | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The scalar keys of config.yaml."""

    study: str
    output_dir: str
    seed: Seed
    split: Literal["train", "val", "test"]
    budget: Budget
    compare: list[str]
    ckpt: str | None
    resume: bool


class Cell:
    """config: resolved, plain containers. Raises UsageError for keys that mean nothing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.settings = settings_of(config)
        self.hash = config_hash(config)
        self.path = Path(self.settings.output_dir) / self.settings.study / folder_name(config, self.hash)
        self.skipped = False  # finished by an earlier call, or another run works on it
        self.busy: str | None = None  # the file of the lock that another run holds: a sweep will look at it again
        self.pruned = False
        self.log = RunLog(name="none")
        # The lock lies outside the folder that `resume=false` deletes. It tries again for a moment: somebody may delete
        # the file (a whole study, say) between opening and locking.
        place = self.study_path / LOCKS / self.path.name
        self.lock = FileLock(place, timeout=0.2, poll_interval=0.02, thread_local=False)

    @property
    def study_path(self) -> Path:
        return self.path.parent

    @cached_property
    def rows(self) -> RowFile:
        """The rows of the folder, read when first asked for: by then no other run writes there."""
        return RowFile(self.path / "rows.jsonl")

    @property
    def finished(self) -> bool:
        """All rows asked for were written by an earlier call, from data of the same content, and their files are
        there."""
        return self._request is not None and was_finished(self.path, self._request)

    @property
    def holder(self) -> str:
        """In brackets."""
        note = note_of(self.lock.lock_file)
        return note and f" ({note})"

    @property
    def finished_line(self) -> str:
        return f"{self.path} is finished; resume=false starts over"

    def finish(self) -> None:
        """Marks the cell as done: the next call skips it."""
        if self._request is not None:
            mark_finished(self.path, self._request, self.rows.done.values())

    @cached_property
    def _request(self) -> str | None:
        """Digest of the request, as it was before anything was read; None where it cannot be read."""
        content = content_of(self.config)
        if content is None:
            return None
        asked = {**{key: self.config[key] for key in ("budget", "split")}, "compare": self.settings.compare}
        algos = {name: self.hash_of(name) for name in self.settings.compare}
        return self.hash + digest({**asked, "algos": algos, **({"content": content} if content else {})})

    def hash_of(self, compared: str) -> str:
        """The config hash of a compared optimiser's rows: this configuration with that algorithm."""
        return config_hash({**self.config, "algo": registry.option("algo", compared)})

    def start(self) -> None:
        """Takes the folder, empties it with `resume=false`, and writes the configuration; finds the cell skipped if
        another run has finished it meanwhile. Raises UserError where another run works in it, nothing can be written,
        or its answers would not find the table of their prices."""
        for group in ("cost", "judge"):
            check_place(self.config[group].get("table"), self.path, f"{group}.table")
        with writing(Path(self.lock.lock_file)):
            Path(self.lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            try:
                self.lock.acquire()
            except Timeout:
                raise Busy(
                    f"another run is working in {self.path}{self.holder}; wait for it or choose another study=..."
                ) from None
            except (OSError, NotImplementedError) as error:  # the latter is filelock's word for the same
                if getattr(error, "errno", None) not in NO_LOCKS:
                    raise
                raise UserError(f"files in {self.study_path} cannot be locked ({error}), so runs would meet in cells; "
                                "choose output_dir=... on a file system with locks") from None  # fmt: skip
            write_note(Path(self.lock.lock_file))
        with writing(self.path):
            if not self.settings.resume and self.path.exists():
                shutil.rmtree(self.path)
            self.skipped = self.settings.resume and self.finished
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.skipped:
                import yaml

                fast = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # a tenth of the other's time
                text = yaml.dump(dict(self.config), Dumper=fast, sort_keys=False, allow_unicode=True)
                (self.path / "config.yaml").write_text(text)

    def stop(self) -> None:
        """Lets another process work in the folder."""
        self.lock.release(force=True)

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Opens the run's logger and closes it in any case."""
        if self.skipped:
            yield
            return
        self.log = construct(self.config["logger"], "logger")
        self.log.open(self.path, self.config)
        failed = True
        try:
            yield
            failed = False
        finally:
            self.log.close(failed)

    def facts(self) -> Row:
        """Row fields that are the same for the whole cell."""
        c = self.config
        return {
            "study": self.settings.study, "cell": self.path.name, "dataset": c["dataset"]["name"],
            "split": self.settings.split, "task": c["task"]["name"], "machine": c["machine"]["name"],
            "cost": c["cost"]["name"], "judge": c["judge"]["name"], "objective": c["cost"].get("objective"),
            "encoder": encoder_of(c), "algo": c["algo"]["name"], "seed": self.settings.seed, "commit": commit(),
            "config_hash": self.hash,
        }  # fmt: skip

    @property
    def outcome(self) -> CellOutcome:
        over = self.pruned or self.busy is not None
        found = {} if over else scalars(self.rows.rows, str(self.config["algo"]["name"]), self.settings.split)
        return CellOutcome(str(self.path), self.busy, self.pruned, found)

    @property
    def working(self) -> bool:
        """No other run writes into the folder."""
        return self.lock.is_locked

    def note(self, status: str, reason: str) -> None:
        """A row about the cell as a whole, unless another run is working on it."""
        if not self.working:
            return
        with contextlib.suppress(UserError):  # a full disk must not hide the reason
            self.rows.note({**self.facts(), "graph": "", "status": status, "reason": reason})


@contextlib.contextmanager
def open_cell(config: Any) -> Iterator[Cell]:
    """The cell of a composed configuration. Errors inside become a row and one sentence; then a single run ends with
    the error's exit code. In a sweep an illegal or pruned cell lets it go on; a failed one surfaces when it is over."""
    sweep = in_sweep()
    try:
        from omegaconf import OmegaConf

        cell = Cell(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    except UserError as error:
        say(str(error), sys.stderr)
        raise SystemExit(error.exit_code) from None
    try:
        cell.skipped = cell.settings.resume and cell.finished
        try:
            if not cell.skipped:
                cell.start()
        except Busy:
            if not sweep:
                raise
            cell.skipped, cell.busy = True, str(cell.lock.lock_file)
            say(f"{cell.path}: another run{cell.holder} works on it; it is looked at again later")
        if cell.skipped and cell.busy is None:
            say(cell.finished_line)
        with cell.logged():
            yield cell
        if sweep and cell.busy is None and cell.settings.ckpt is None:  # a checkpoint has its say in others
            from hydra.core.hydra_config import HydraConfig

            hydra = HydraConfig.get()
            keep_composed(list(hydra.overrides.task), sources_of(hydra), cell.config)
    except (Incompatible, NothingFits, Pruned) as error:
        cell.pruned = isinstance(error, Pruned)
        if not isinstance(error, NothingFits):
            cell.note("pruned" if cell.pruned else "illegal", str(error))
        say(str(error), sys.stderr)
        if not sweep:
            raise SystemExit(1) from None
    except Exception as error:
        sentence = sentence_of(error)
        if isinstance(error, UsageError) and cell.working and not sweep:
            if cell.path.is_dir() and {file.name for file in cell.path.iterdir()} <= {"config.yaml"}:
                shutil.rmtree(cell.path)  # it never began
        elif not isinstance(error, RowsFailed):
            cell.note("failed", sentence)
        if os.environ.get("GRAPHOPT_TRACEBACK") == "1":
            traceback.print_exc()
        elif not isinstance(error, UserError | GraphError):
            with contextlib.suppress(OSError):  # there is no folder yet, or no room in it
                (cell.path / "error.txt").write_text(traceback.format_exc(), errors="backslashreplace")
                sentence += f"; it is in {cell.path / 'error.txt'}"
        if sweep:
            raise UserError(sentence) from None
        say(sentence, sys.stderr)
        raise SystemExit(getattr(error, "exit_code", 1)) from None
    finally:
        cell.stop()


def sentence_of(error: BaseException) -> str:
    """An error in one line; unexpected ones with their type, and the line of the user's own code that raised it."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError | GraphError):
        return text
    place = "" if isinstance(error, Unsolved) else place_of(error)
    return f"{type(error).__name__}: {text}" + (f" ({place}; {HOW})" if place else "")


def in_sweep() -> bool:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The scalar keys, checked. A single number may stand for a list of one."""
    scalars = {key: value for key, value in config.items() if key not in GROUPS}
    known = list(Settings.__dataclass_fields__)
    for key in scalars:
        if key not in known:
            raise UsageError(f"{key} does not exist; keys: {', '.join((*known, *GROUPS))}")
    budget = scalars.get("budget")
    if isinstance(budget, dict) and isinstance(budget.get("evals"), int):
        scalars["budget"] = {**budget, "evals": [budget["evals"]]}
    if "compare" in scalars:
        scalars["compare"] = scalars["compare"] or []
    settings: Settings = call(Settings, scalars, "", {})
    if not settings.budget.evals:
        raise UsageError("budget.evals must name at least one number of evaluations")
    if not settings.study.strip():
        raise UsageError("study= needs a name: that of the folder of the results, such as study=mine")
    for group in GROUPS:
        if not isinstance(config.get(group), Mapping):
            raise UsageError(
                f"{group} is not chosen; give {group}=..., one of the files in conf/{group.replace('judge', 'cost')}"
            )
        convert(config[group].get("name"), str, f"{group}.name")
    return settings


def content_of(config: Mapping[str, Any]) -> str | None:
    """Digest of the files that the data set reads, empty where it reads none; None where they cannot be read, which the
    run itself will say."""
    try:
        dataset: Dataset = construct(config["dataset"], "dataset", {"seed": config["seed"]})
        return digest_of(dataset.files())
    except (UserError, GraphError, OSError):
        return None


def config_hash(config: Mapping[str, Any]) -> str:
    """8 hex digits of everything that makes results differ."""
    unread = () if encoder_of(config) is not None else ("encoder",)
    return digest({key: value for key, value in config.items() if key not in (*FREE, *unread)})


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def folder_name(config: Mapping[str, Any], short_hash: str) -> str:
    """Readable choices and the hash, e.g. `fusion-go-gin-zoo-gpu2-simulator-s0-1a2b3c4d`; without the encoder where
    nothing reads it."""
    before, after = ("task", "algo"), ("dataset", "machine", "cost")
    encoder = encoder_of(config)
    parts = [str(config[group]["name"]) for group in before] + ([] if encoder is None else [encoder])
    parts += [str(config[group]["name"]) for group in after]
    if config["judge"]["name"] != config["cost"]["name"]:
        parts.append(str(config["judge"]["name"]))
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", "-".join([*parts, f"s{config['seed']}", short_hash]))
