"""Searches over settings by Optuna: totals, pruning, killed workers, settings that fail."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="pip install 'graphopt[optuna]'")
import optuna

from graphopt import CONF
from graphopt.report.status import states_of

SEARCH = ("dataset=synthetic", "task=fusion", "budget.evals=[300]", "algo=annealing", "study=found")
TEMPERATURE = "algo.cold=tag(log,interval(1e-3,1))"


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, str(CONF.parent / "run.py"), "-m", "hydra/sweeper=optuna", f"output_dir={folder}", *words]


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(folder, *words), capture_output=True, text=True, timeout=240, cwd=folder)


def trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    journal = optuna.storages.journal.JournalFileBackend(str(folder / "found" / "trials.log"))
    storage = optuna.storages.JournalStorage(journal)
    return optuna.load_study(study_name="found", storage=storage).trials


def test_a_total_of_trials_in_several_calls(tmp_path: Path) -> None:
    first = run(tmp_path, *SEARCH, TEMPERATURE, "algo.start=initial,zero", "hydra.sweeper.n_trials=2")
    assert first.returncode == 0 and "found: 2 trials done, 0 pruned, 0 failed" in first.stdout, first.stderr
    again = run(tmp_path, *SEARCH, TEMPERATURE, "algo.start=initial,zero", "hydra.sweeper.n_trials=3")
    assert again.returncode == 0 and "found: 3 trials done" in again.stdout and "algo.cold=0.0" in again.stdout
    known = trials(tmp_path)
    assert len(known) == 3 and {*known[0].params} == {"algo.cold", "algo.start"}
    assert len({trial.params["algo.cold"] for trial in known}) == 3 and all(trial.value >= 1 for trial in known)
    other = run(tmp_path, *SEARCH, TEMPERATURE, "machine=cpu_core", "hydra.sweeper.n_trials=4")
    assert other.returncode == 2 and "is a search with other words" in other.stderr
    nothing = run(tmp_path, *SEARCH, "study=fixed")
    assert nothing.returncode == 2 and "searches over words that vary" in nothing.stderr
    measure = run(tmp_path, *SEARCH, TEMPERATURE, "study=named", "hydra.sweeper.measure=quality")
    assert measure.returncode == 2 and "choose one of" in measure.stderr and "speedup_families" in measure.stderr


@pytest.mark.slow
def test_one_of_two_workers_is_killed(tmp_path: Path) -> None:
    """Its trial is tried again by the other: none is lost, none counts twice."""
    words = (*SEARCH, TEMPERATURE, "budget.evals=[3000]", "hydra.sweeper.n_trials=5")
    workers = [subprocess.Popen(command(tmp_path, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                cwd=tmp_path) for _ in range(2)]  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len([*tmp_path.glob("found/*/rows.jsonl")]) < 2:
        time.sleep(0.05)
    os.kill(workers[0].pid, signal.SIGKILL)
    said, _ = workers[1].communicate(timeout=240)
    workers[0].communicate()
    assert workers[1].returncode == 0 and "found: 5 trials done, 0 pruned, 0 failed" in said, said
    known = trials(tmp_path)
    complete = [trial for trial in known if trial.state == optuna.trial.TrialState.COMPLETE]
    assert len(complete) == 5 and len(known) - 5 <= 1  # the one that was killed, beside its second try
    assert [one.state for one in states_of(tmp_path / "found")] == ["done"] * 5


@pytest.mark.slow
def test_trainings_are_pruned_by_their_validations(tmp_path: Path) -> None:
    learner = ("algo=go", "budget.evals=[20]", "trainer.steps=6", "trainer.val_every=2", "trainer.max_seconds=null",
               "dataset.val=4", "algo.learning.rate=tag(log,interval(1e-4,1e-2))")  # fmt: skip
    lower = "hydra.sweeper.pruner={_target_: optuna.pruners.ThresholdPruner, lower: 100}"
    done = run(tmp_path, *SEARCH, *learner, lower, "hydra.sweeper.n_trials=1")
    assert done.returncode == 0 and "found: 0 trials done, 1 pruned, 0 failed" in done.stdout, done.stderr
    (trial,) = trials(tmp_path)
    assert trial.state == optuna.trial.TrialState.PRUNED and [*trial.intermediate_values] == [2]
    (cell,) = states_of(tmp_path / "found")
    assert cell.state == "pruned" and "after 2 steps of training" in cell.what


@pytest.mark.slow
def test_failed_trials_count_and_are_tried_again_when_asked(tmp_path: Path) -> None:
    words = (*SEARCH, "dataset=onnx", "dataset.path=model.onnx", "algo.hot=0.01,0.1", "hydra.sweeper.n_trials=1")
    failed = run(tmp_path, *words)
    assert failed.returncode == 1 and "1 trials failed, the first: " in failed.stderr, failed.stderr
    assert run(tmp_path, *words).returncode == 0  # nothing is left to do
    study = [sys.executable, "-m", "graphopt", "study", "retry", "found"]
    retried = subprocess.run(study, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert retried.returncode == 1 and "1 trials failed" in retried.stderr
    assert len(trials(tmp_path)) == 2
