"""Hydra's sweeper, without the jobs whose cells are finished: they are passed over before they are composed. The same
sweep may run from several places at once, which divide the cells between them. A job whose cell another run works on is
looked at again when the others are done.

An experiment may have algorithms of its own: `hydra.sweeper.algos` says of each name which words make it of an option.
"""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from graphopt import CONF
from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import say
from graphopt.run.composed import find_composed, sources_of

LAUNCHERS: dict[str, dict[str, Any]] = {  # class of a plugin: its settings that are others with us
    "SlurmLauncher": {"max_num_timeout": 100},  # a cell goes on where a time limit stopped it, so often
    "RayLauncher": {"ray.init.object_store_memory": None},  # else it joins no cluster
}
LOOK_SECONDS = 2.0  # between looks at cells that others work on


class ResumingSweeper(BasicSweeper):
    """As Hydra's own in all else. algos: name -> words, the first of them `algo=OPTION`."""

    def __init__(
        self, max_batch_size: int | None, params: Mapping[str, str] | None, algos: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__(max_batch_size, dict(params or {}))
        self.algos = algos

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        _with_our_defaults(config.hydra)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.composer = Composer(hydra_context.config_loader)
        if isinstance(self.launcher, BasicLauncher):
            self.launcher.hydra_context = replace(hydra_context, config_loader=self.composer)
        self.launcher = _LooksAgain(self.launcher)  # type: ignore[assignment]  # which launches, and no more

    def sweep(self, arguments: list[str]) -> Any:
        from graphopt.run.sharing import driving, keep_command

        assert self.config is not None
        study = Path(self.config.hydra.sweep.dir)
        keep_command(study, sys.argv[1:])
        with driving(study) as self.driver:
            return self.run_jobs(arguments)

    def run_jobs(self, arguments: list[str]) -> Any:
        """The results of all jobs, in lists."""
        return super().sweep(arguments)

    def split_arguments(self, overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:  # type: ignore[override]
        assert self.config is not None
        sources = sources_of(self.config.hydra)
        batches = BasicSweeper.split_arguments(overrides, max_batch_size)
        spelled = [[spelled_out(job, self.algos) for job in batch] for batch in batches]
        from graphopt.run.sharing import keep_jobs  # with numpy, which the command's help does without

        keep_jobs(Path(self.config.hydra.sweep.dir), [job for batch in spelled for job in batch])
        left = [[job for job in batch if not _finished(job, sources)] for batch in spelled]
        return [batch for batch in left if batch]

    def validate_batch_is_legal(self, batch: Any) -> None:
        """A key that only some jobs lack is no end of the sweep: it is handed on (`+`), and their cells refuse it."""
        errors = dict[int, ConfigCompositionException]()
        for place, job in enumerate(batch):
            words = list(job)
            while True:
                try:
                    self.composer.load_sweep_config(self.config, words)
                    break
                except ConfigCompositionException as error:
                    errors.setdefault(place, error)
                    given = [_appended(word, str(error)) for word in words]
                    if given == words or len(errors) == len(batch):
                        raise errors[place] from None
                    words = given
            batch[place] = words


class Composer:
    """Composes jobs as Hydra's loader does, but once for jobs that choose the same options and set the same keys: the
    values of keys come last in Hydra's order, too. That takes a quarter of the time."""

    def __init__(self, loader: Any) -> None:
        self._load, self._known = loader.load_sweep_config, dict[tuple[str, ...], Any]()
        self._groups = {path.name for path in CONF.iterdir() if path.is_dir()}

    def load_sweep_config(self, master_config: Any, sweep_overrides: list[str]) -> Any:
        alike = tuple(_key(word) if self._sets_a_value(word) else word for word in sweep_overrides)
        if alike not in self._known:
            self._known[alike] = self._load(master_config, sweep_overrides)
            return deepcopy(self._known[alike])
        config = deepcopy(self._known[alike])
        parsed = OverridesParser.create().parse_overrides(sweep_overrides)
        values = [one for one, word in zip(parsed, sweep_overrides) if self._sets_a_value(word)]
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        config.hydra.overrides.task = list(sweep_overrides)
        how = config.hydra.job.config.override_dirname
        config.hydra.job.override_dirname = get_overrides_dirname(
            overrides=parsed, kv_sep=how.kv_sep, item_sep=how.item_sep, exclude_keys=how.exclude_keys
        )
        return config

    def _sets_a_value(self, word: str) -> bool:
        """Not an option of a group, nor a mapping, which would be merged with the first job's."""
        return not (_key(word).partition("@")[0] in self._groups or word[0] in "+~" or "{" in word)


def _key(word: str) -> str:
    return word.partition("=")[0]


def _with_our_defaults(hydra: Any) -> None:
    """Settings of launchers that suit cells, where the command line says nothing else."""
    said = {_key(word.lstrip("+")) for word in hydra.overrides.hydra}
    for key, value in LAUNCHERS.get(str(hydra.launcher.get("_target_", "")).rpartition(".")[2], {}).items():
        if f"hydra.launcher.{key}" not in said:
            OmegaConf.update(hydra.launcher, key, value, force_add=True)


class _LooksAgain:
    """A launcher that starts jobs again whose cells others were working on, once these have let go of them. Such a job
    gives the file of their lock."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher

    def launch(self, jobs: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        """The results of all jobs."""
        from graphopt.run.sharing import held

        results, said = self._launched(jobs, initial_job_idx), 0
        while busy := {i: found.return_value.busy for i, found in enumerate(results) if _busy(found)}:
            free = [i for i, lock in busy.items() if not held(lock)]
            if free:
                again = self._launched([jobs[i] for i in free], initial_job_idx)
                results = [dict(zip(free, again)).get(i, found) for i, found in enumerate(results)]
                continue
            if len(busy) != said:
                said = len(busy)
                say(f"other runs work on {said} cells; looking again every {LOOK_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)
        return results

    def _launched(self, jobs: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        kind = type(self._launcher).__module__
        with _lost_jobs() if "submitit" in kind else _lost_tasks() if "ray" in kind else nullcontext():
            results = list(self._launcher.launch(jobs, initial_job_idx=initial_job_idx))
        for job, found in zip(jobs, results):
            if found.status is JobStatus.FAILED and found.overrides is None:
                found.overrides = list(job)
        return results


@contextmanager
def _lost_jobs() -> Iterator[None]:
    """A job of submitit that was killed, or ran out of time or memory, is a failed result with the place of its log;
    the others go on, and are waited for."""
    from unittest.mock import patch

    from submitit.core.core import Job
    from submitit.core.utils import FailedJobError, UncompletedJobError

    results = Job.results

    def found(job: Any) -> list[Any]:
        try:
            return list(results(job))
        except (FailedJobError, UncompletedJobError) as error:
            why = " ".join(str(error).split("\n")[0].split())
            lost = UserError(f"job {job.job_id} ended without a result ({why}); its log is {job.paths.stderr}")
            return [JobReturn(status=JobStatus.FAILED, _return_value=lost)]

    with patch.object(Job, "results", found):
        yield


@contextmanager
def _lost_tasks() -> Iterator[None]:
    """The same of Ray, which first tries a task three times more where its worker or machine is gone."""
    from unittest.mock import patch

    import ray
    from ray.exceptions import RayError, RayTaskError

    get = ray.get

    def found(asked: Any, **options: Any) -> Any:
        try:
            return get(asked, **options)
        except RayTaskError:
            raise
        except RayError as error:
            why = " ".join(str(error).split("\n")[0].split())
            lost = UserError(f"a task of Ray ended without a result ({why}); logs are in /tmp/ray/session_latest/logs")
            return JobReturn(status=JobStatus.FAILED, _return_value=lost)

    with patch.object(ray, "get", found):
        yield


def _busy(found: Any) -> bool:
    return found.status is JobStatus.COMPLETED and found.return_value.busy is not None


def spelled_out(job: list[str], algos: Mapping[str, Sequence[str]]) -> list[str]:
    """The job's words with an experiment's own algorithm in words of options; later words win, as ever."""
    found: list[str] = []
    for word in job:
        name = word.removeprefix("algo=")
        found += [*algos[name], f"algo.name={name}"] if word != name and name in algos else [word]
    return found


def _appended(word: str, error: str) -> str:
    """The word as one that adds a key, where the error says that this one cannot be overridden."""
    found = re.search(r"Could not override '([^']+)'", error)
    return f"+{word}" if found and _key(word) == found.group(1) else word


def _finished(job: list[str], sources: list[str]) -> bool:
    """Whether the job has nothing to do; says so."""
    from graphopt.run.cell import Cell

    config = find_composed(job, sources)
    try:
        cell = None if config is None else Cell(config)
        if cell is None or not (cell.settings.resume and cell.finished):
            return False
    except UserError:
        return False
    say(cell.finished_line)
    return True
