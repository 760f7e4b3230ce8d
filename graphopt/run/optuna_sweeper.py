"""Hydra's sweeper for searches over settings: Optuna proposes the settings of jobs, through any launcher.

The same search may run from several places at once; `n_trials` counts the trials of all. Who runs a trial holds a lock
in the study's folder. So a trial whose process was killed is known at once, without a heartbeat and a grace time. Its
settings are tried again: its cell goes on where it stopped.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.utils import JobStatus
from hydra.utils import instantiate
from omegaconf import OmegaConf

from graphopt.core.errors import UsageError, UserError
from graphopt.core.utils.terminal import say
from graphopt.run.sweep import LOOK_SECONDS, ResumingSweeper, spelled_out

AGAIN, DRIVER, WORDS = "again", "driver", "words"  # attributes of trials and of the study
USUAL = {"_target_": "optuna.samplers.TPESampler", "multivariate": True, "constant_liar": True}
SHOWN = 10  # trials, the best
ELSEWHERE = ("study", "output_dir", "resume")  # keys that may change in the middle of a search


class OptunaSweeper(ResumingSweeper):
    """n_trials: of the whole search, in all its calls. n_jobs: trials at once, of each call. measure: a name of
    `graphopt.run.loggers.scalars`. sampler: made for each trial anew, with `seed` = seed + the trial's number. So a
    search with n_jobs=1 is replayed by its seed, and places do not propose the same."""

    def __init__(
        self, *, n_trials: int, n_jobs: int, measure: str, direction: str, storage: str | None,
        sampler: Mapping[str, Any] | None, pruner: Mapping[str, Any] | None, seed: int, retry: bool,
        params: Mapping[str, str] | None, algos: Mapping[str, Sequence[str]],
    ) -> None:  # fmt: skip
        super().__init__(None, params, algos)
        self.n_trials, self.n_jobs, self.measure, self.seed, self.retry = n_trials, n_jobs, measure, seed, retry
        self.sampler = sampler or USUAL

    def run_jobs(self, arguments: list[str]) -> list[Any]:
        """Results of the trials that this call ran. Raises UserError where some failed."""
        from graphopt.run.sharing import LOCKS, keep_jobs
        from graphopt.run.trials import open_study

        assert self.config is not None and self.launcher is not None and self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        fixed, space = _split(parser.parse_overrides([*self._parse_config(), *arguments]))
        folder = Path(self.config.hydra.sweep.dir)
        self.study: Any = open_study(self._settings(), folder)
        self._check_words(fixed)
        results, failed = list[Any](), list[str]()
        while True:
            with FileLock(folder / LOCKS / "trials"):
                trials = self._asked(space, folder)
            if not trials:
                if not self._in_state("RUNNING"):  # of other calls
                    break
                time.sleep(LOOK_SECONDS)
                continue
            jobs = [spelled_out([*fixed, *(f"{k}={v}" for k, v in t.params.items())], self.algos) for t in trials]
            keep_jobs(folder, jobs)
            jobs = [[*job, f"+hydra.job.env_set.GRAPHOPT_TRIAL='{t.number}'"] for job, t in zip(jobs, trials)]
            self.validate_batch_is_legal(jobs)
            found = self.launcher.launch(jobs, initial_job_idx=trials[0].number)
            for trial, result in zip(trials, found):
                failed += self._told(trial, result)
            results += found
        self._say_best()
        if failed:
            raise UserError(f"{len(failed)} trials failed, the first: {failed[0]}")
        return [results]

    def _settings(self) -> Any:
        assert self.config is not None
        return OmegaConf.to_container(self.config.hydra.sweeper, resolve=True)

    def _check_words(self, fixed: Sequence[str]) -> None:
        """Fixed words must be those of the earlier calls, else measures of different things are compared."""
        words = sorted(word for word in fixed if word.partition("=")[0] not in ELSEWHERE)
        known = self.study.user_attrs.get(WORDS)
        if known is None:
            self.study.set_user_attr(WORDS, words)
        elif known != words:
            raise UsageError(
                f"study={self.study.study_name} is a search with other words ({' '.join(known) or 'none'}); "
                "give these, or another study=NAME"
            )

    def _asked(self, space: Mapping[str, Any], folder: Path) -> list[Any]:
        """Trials for this call to run: at most n_jobs, and no more than are left of n_trials."""
        import optuna

        from graphopt.run.sharing import LOCKS, held

        states = optuna.trial.TrialState
        again = [trial.number for trial in self._in_state("FAIL")] if self.retry else []
        self.retry = False  # only those of earlier calls
        for trial in self._in_state("RUNNING"):
            holder = folder / LOCKS / Path(str(trial.user_attrs.get(DRIVER, "none"))).name
            if holder.name != self.driver and not (holder.is_file() and held(str(holder))):
                self.study.tell(trial.number, state=states.FAIL)
                again.append(trial.number)
        known = self.study.get_trials(deepcopy=False)
        before = self._again()
        for number in sorted({*again} - before):
            self.study.enqueue_trial(known[number].params)
        self.study.set_user_attr(AGAIN, sorted({*again} | before))
        known = self.study.get_trials(deepcopy=False)
        counted = sum(trial.state != states.WAITING for trial in known) - len(self._again())
        asked = []
        for number in range(len(known), len(known) + min(self.n_jobs, self.n_trials - counted)):
            self.study.sampler = instantiate(self.sampler, seed=self.seed + number)
            asked.append(self.study.ask(space))
            asked[-1].set_user_attr(DRIVER, self.driver)
        return asked

    def _in_state(self, name: str) -> list[Any]:
        import optuna

        return list(self.study.get_trials(deepcopy=False, states=[optuna.trial.TrialState[name]]))

    def _again(self) -> set[int]:
        """Numbers of trials that do not count, since their settings were tried again."""
        return {*self.study.user_attrs.get(AGAIN, ())}

    def _told(self, trial: Any, result: Any) -> list[str]:
        """Tells Optuna the result of a trial. Returns why it failed, if it did."""
        import optuna

        states = optuna.trial.TrialState
        if result.status is not JobStatus.COMPLETED:
            self.study.tell(trial, state=states.FAIL)
            return [" ".join(str(result._return_value).split())]
        outcome = result.return_value
        trial.set_user_attr("cell", outcome.cell)
        if outcome.pruned:
            self.study.tell(trial, state=states.PRUNED)
        elif self.measure in outcome.measures:
            self.study.tell(trial, outcome.measures[self.measure])
        else:  # a combination that makes no sense, or nothing that fits into memory
            self.study.tell(trial, state=states.FAIL)
            if outcome.measures:
                raise UsageError(
                    f"hydra.sweeper.measure={self.measure} is no measure of a cell; "
                    f"choose one of {', '.join(sorted(outcome.measures))}"
                )
        return []

    def _say_best(self) -> None:
        import optuna

        known, states = self.study.get_trials(deepcopy=False), optuna.trial.TrialState
        counts = Counter(trial.state for trial in known if trial.number not in self._again())
        done = [trial for trial in known if trial.state == states.COMPLETE]
        done.sort(key=lambda trial: trial.value, reverse=self.study.direction == optuna.study.StudyDirection.MAXIMIZE)
        say(f"{self.study.study_name}: {len(done)} trials done, {counts[states.PRUNED]} pruned, "
            f"{counts[states.FAIL]} failed" + f"; the best {SHOWN}:" * (len(done) > SHOWN))  # fmt: skip
        for trial in done[:SHOWN]:
            words = " ".join(f"{key}={value}" for key, value in trial.params.items())
            say(f"  {self.measure} {trial.value:.4g}, trial {trial.number}: {words}")


def _split(overrides: Sequence[Override]) -> tuple[list[str], dict[str, Any]]:
    """Words that do not vary, and the range of each that does: `choice(a,b)`, `range(1,9)`, `interval(0.1,1)`,
    `int(interval(1,8))`, `tag(log,interval(1e-4,1e-2))`."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    fixed, space = dict[str, str](), dict[str, Any]()
    for override in overrides:
        key = override.get_key_element()
        fixed.pop(key, None), space.pop(key, None)
        if not override.is_sweep_override():
            fixed[key] = f"{key}={override.get_value_element_as_str()}"
            continue
        value: Any = override.value()
        if isinstance(value, IntervalSweep):
            kind: Any = IntDistribution if isinstance(value.start, int) else FloatDistribution
            space[key] = kind(value.start, value.end, log="log" in value.tags)
        elif isinstance(value, RangeSweep) and not value.shuffle and isinstance(value.start, int):
            space[key] = IntDistribution(value.start, list(value.range())[-1], step=int(value.step))
        else:
            choices = list(override.sweep_string_iterator())
            space[key] = CategoricalDistribution(choices)
            if len(choices) == 1:
                del space[key]
                fixed[key] = f"{key}={choices[0]}"
    if not space:
        raise UsageError(
            "hydra/sweeper=optuna searches over words that vary, and none does; "
            "give e.g. 'algo.learning.rate=tag(log,interval(1e-4,1e-2))' or encoder.width=32,64"
        )
    fixed.setdefault("split", "split=val")  # settings are chosen on validation graphs
    return [*fixed.values()], space
