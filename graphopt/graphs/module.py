"""The Lightning data module: batch k is a function of the seed and k, so that training resumes exactly."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader, IterableDataset

from graphopt.core.graph import Graph


class GraphStream(IterableDataset[list[Graph]]):
    """Endless batches: every graph once per pass, in a new order each pass. Starts at step `start`; process `rank` of
    `world` takes every `world`-th batch."""

    def __init__(self, graphs: Sequence[Graph], batch_graphs: int, seed: int, start: int, rank: int = 0,
                 world: int = 1) -> None:  # fmt: skip
        self.graphs, self.seed, self.start, self.rank, self.world = graphs, seed, start, rank, world
        self.size = min(batch_graphs, len(graphs))

    def at(self, step: int) -> list[Graph]:
        """The batch of one step."""
        first = (step * self.world + self.rank) * self.size
        return [self.graphs[self._index(position)] for position in range(first, first + self.size)]

    def _index(self, position: int) -> int:
        turn, place = divmod(position, len(self.graphs))
        return int(np.random.default_rng([self.seed, turn]).permutation(len(self.graphs))[place])

    def __iter__(self) -> Iterator[list[Graph]]:
        step = self.start
        while True:
            yield self.at(step)
            step += 1


class GraphBatches(pl.LightningDataModule):
    """Training batches from the step on that the learner has come to, and validation graphs one by one."""

    def __init__(self, graphs: Sequence[Graph], val_graphs: Sequence[Graph], batch_graphs: int, seed: int) -> None:
        super().__init__()
        self.graphs, self.val_graphs, self.batch_graphs, self.seed = graphs, val_graphs, batch_graphs, seed

    def train_dataloader(self) -> DataLoader[list[Graph]]:
        trainer = self.trainer
        assert trainer is not None
        start = int(getattr(trainer.lightning_module, "train_steps", 0))
        place = trainer.global_rank, trainer.world_size
        stream = GraphStream(self.graphs, self.batch_graphs, self.seed, start, *place)
        return DataLoader(stream, batch_size=None, collate_fn=_unchanged)

    def val_dataloader(self) -> DataLoader[Graph]:
        """All of them in every process: the learner takes its share."""
        return DataLoader(list(self.val_graphs), batch_size=None, collate_fn=_unchanged)  # type: ignore[arg-type]


def _unchanged(batch: list[Graph]) -> list[Graph]:
    return batch
