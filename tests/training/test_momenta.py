"""Checkpoints of trainings whose schedule changes momenta beside the rate."""

from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from graphopt.errors import UserError
from graphopt.training.restored import check_optimizers


class OneCycle(pl.LightningModule):
    """A parameter, Adam, and a schedule over ten steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trained(steps: int) -> tuple[Any, OneCycle]:
    """What is checked of a trainer after some steps, and its learner."""
    learner = OneCycle()
    made = learner.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    for _ in range(steps):
        learner.layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        schedule.step()
    config = SimpleNamespace(scheduler=schedule)
    return SimpleNamespace(optimizers=[optimizer], lr_scheduler_configs=[config]), learner


def test_momenta_that_a_schedule_changed_are_no_other_settings() -> None:
    trainer, learner = trained(4)
    changed = trainer.optimizers[0].param_groups[0]["betas"]
    assert changed != learner.configure_optimizers()["optimizer"].param_groups[0]["betas"]
    check_optimizers(trainer, learner, 1)


@pytest.mark.parametrize(("key", "value"), [("betas", (1.5, 0.9)), ("betas", 0.9), ("weight_decay", 0.5)])
def test_others_are(key: str, value: Any) -> None:
    trainer, learner = trained(4)
    trainer.optimizers[0].param_groups[0][key] = value
    with pytest.raises(UserError, match="settings of an optimiser are of another kind"):
        check_optimizers(trainer, learner, 1)
