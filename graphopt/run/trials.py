"""Trials of a search over settings, kept by Optuna: shared by the sweeper and the jobs that it starts. It loads no
Hydra plugin, which may not be imported before Hydra loads them itself."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock

from graphopt.core.errors import ConfigError
from graphopt.run.sharing import LOCKS

USUAL = {"_target_": "optuna.pruners.MedianPruner"}
JOURNAL, TRIAL = "trials.log", "GRAPHOPT_TRIAL"  # in the study's folder; of a job's environment


def open_study(sweeper: Mapping[str, Any], folder: Path) -> Any:
    """The Optuna study of a sweep, made where it is missing. sweeper: the configuration `hydra.sweeper`; folder: of the
    study, after which it is named."""
    if find_spec("optuna") is None:
        raise ConfigError("hydra/sweeper=optuna needs Optuna, which is not installed; pip install 'graphopt[optuna]'")
    import optuna
    from hydra.utils import instantiate

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    storage: Any = sweeper["storage"]
    if storage is None:
        from optuna.storages.journal import JournalFileBackend, JournalStorage

        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    with FileLock(folder / LOCKS / "trials"):  # two processes that make the tables of a database at once fail
        return optuna.create_study(
            storage=storage, study_name=folder.name, direction=sweeper["direction"], load_if_exists=True,
            pruner=instantiate(sweeper["pruner"] or USUAL),
        )  # fmt: skip


class ReportedTrial:
    """The trial that a job is, as its training sees it."""

    def __init__(self, sweeper: Mapping[str, Any], folder: Path, number: int) -> None:
        self._study, self._number = open_study(sweeper, folder), number

    def hopeless(self, step: int, value: float) -> bool:
        """Keeps the validation measure after a step of training. Whether the pruner would end the trial."""
        trial = self._study.get_trials(deepcopy=False)[self._number]
        if trial.state.is_finished():
            return False
        self._study._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        return bool(self._study.pruner.prune(self._study, self._study.get_trials()[self._number]))


def reported_trial() -> ReportedTrial | None:
    """That of this process's job; None where no sweeper of trials started it."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    if TRIAL not in os.environ or not HydraConfig.initialized():
        return None
    hydra = HydraConfig.get()
    sweeper: Any = OmegaConf.to_container(hydra.sweeper, resolve=True)
    return ReportedTrial(sweeper, Path(hydra.sweep.dir), int(os.environ[TRIAL]))
