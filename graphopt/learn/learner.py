"""`Learner`: a LightningModule that is also a `Solver`. `training_step` is the paper, `solve` is how it is used."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph
from graphopt.core.plan import named_counts
from graphopt.problems.assignment import AssignTask, Pricing
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import Solver, solve
from graphopt.problems.problem import Task


def stored_numbers(values: Any, count: int) -> list[float]:
    """So many finite numbers, from a checkpoint. Raises Unreadable when they are none."""
    plain = [float(value) for value in values if isinstance(value, int | float)] if isinstance(values, list) else []
    if len(plain) != count or len(values) != count or not all(map(math.isfinite, plain)):
        raise Unreadable("what it knows of its training graphs are no numbers")
    return plain


LARGE = 20_000  # ops from which several threads make a pass faster; below, they wait for each other


@contextmanager
def inference(graph: Graph) -> Iterator[None]:
    """How `solve` asks a network: without gradients, on as many threads as pay."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if graph.num_ops >= LARGE else 1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


class Learner(pl.LightningModule, Solver[Any]):
    """Base of every learned optimiser; of tasks that assign, unless it says otherwise (`accepts`).

    A subclass implements `training_step(graphs: list[Graph], batch_idx)`, `configure_optimizers` and `solve`. All
    prices outside of `solve` go through `pricing(graph)`, which counts them in `train_evals`. It logs `reward`, and
    losses as `losses/...`. State beyond parameters and optimisers is kept by overriding `on_save_checkpoint` and
    `on_load_checkpoint` with plain values.

    metric: the name of the validation metric, logged as `val/<metric>`; higher is better. By default the geometric mean
    of the speed-ups over the default on the validation graphs, with a small budget; the prices are training cost.

    network_settings: keys of its yaml file that its weights belong to; a checkpoint brings them along.
    training_only: how names of parameters begin that `solve` does not use; packaged checkpoints leave them out.
    applies_train_mask: whether ops outside of `Graph.train_mask` teach it nothing.
    any_purpose: whether the same weights serve every task and objective that it can solve; one packaged checkpoint is
    for all of them.
    """

    accepts: ClassVar[tuple[type[Task], ...]] = (AssignTask,)
    network_settings: ClassVar[frozenset[str]] = frozenset()
    training_only: ClassVar[tuple[str, ...]] = ()
    applies_train_mask: ClassVar[bool] = False
    any_purpose: ClassVar[bool] = False
    metric: ClassVar[str] = "speedup"

    def __init__(self, *, name: str, task: Any, cost: CostModel, seed: int) -> None:
        super().__init__()
        self.name, self.task, self.cost = name, task, cost
        self.train_steps, self.train_evals, self.train_seconds = 0, 0, 0.0
        self._random = np.random.default_rng([seed, 0x1EA12])  # the learner's own draws; stored in checkpoints
        self._pricings: dict[str, Pricing] = {}
        self.val_evals, self.val_seed = 0, seed  # of each validation problem
        self.last_metric = math.nan  # of the last validation
        self._values: list[float] = []  # of the validation that is going on

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        """Inputs per op that the learner adds to the encoder's features."""
        return 0

    def made_for(self) -> dict[str, Any]:
        """The parts of the problem that its weights depend on, plain values; those of a checkpoint must be equal."""
        return {"decisions": named_counts(self.task.heads)}

    def prepare_training(self, graphs: Sequence[Graph]) -> None:
        """Prepares for the training graphs before the first step, or before training goes on; by default nothing. Its
        prices are training cost, counted when no step has been made."""

    def validation_step(self, graph: Graph, batch_idx: int) -> None:
        """Adds the values of one graph; processes share the graphs."""
        if batch_idx % self.trainer.world_size == self.trainer.global_rank:
            self._values += self.validation_values(graph)

    def on_validation_epoch_end(self) -> None:
        total = torch.tensor([sum(self._values), len(self._values), self.train_evals], dtype=torch.float64)
        total_3 = self.trainer.strategy.reduce(total.to(self.device), reduce_op="sum")
        summed, count, evals = torch.as_tensor(total_3).tolist()
        self._values = []
        self.last_metric = self.validation_metric(summed / count) if count else 0.0
        self.log_dict({f"val/{self.metric}": self.last_metric, "train_evals": evals})

    def validation_values(self, graph: Graph) -> list[float]:
        """Values of one validation graph, averaged over all graphs: the logarithm of the speed-up, if there is any."""
        problem, _ = solve(self, graph, self.task, self.cost, evals=self.val_evals, seed=self.val_seed)
        self.train_evals += problem.evals
        before, after = problem.initial_cost, problem.best_cost
        return [math.log(before / after)] if math.isfinite(before) and math.isfinite(after) and after > 0 else []

    def validation_metric(self, mean: float) -> float:
        """The metric, from the mean of all values."""
        return math.exp(mean)

    def pricing(self, graph: Graph) -> Pricing:
        """Prices for training, which count."""
        if graph.hash not in self._pricings:
            self._pricings[graph.hash] = Pricing(graph, self.task, self.cost, self._count)
        return self._pricings[graph.hash]

    def _count(self, prices: int) -> None:
        self.train_evals += prices

    def initial_cost(self, graph: Graph) -> float:
        """The default heuristic's price, which scales rewards. Known to everybody, so not billed."""
        return self.pricing(graph).initial_cost

    def transfer_batch_to_device(self, batch: list[Graph], device: torch.device, dataloader_idx: int) -> list[Graph]:
        """Graphs stay where they are; tensors are moved when features are built."""
        return batch

    @property
    def device_name(self) -> str:
        """Where it runs, as rows say it."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device.type)

    def random_state(self) -> dict[str, Any]:
        """The state of the learner's generator, plain values."""
        return dict(self._random.bit_generator.state)

    def set_random_state(self, state: dict[str, Any]) -> None:
        self._random.bit_generator.state = state
