"""The Lightning data module: batch k is a function of the seed and k, so that training resumes exactly."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader, IterableDataset

from graphopt.graph import Graph


class GraphStream(IterableDataset[list[Graph]]):
    """Endless batches: every graph once per pass, in a new order each pass. Starts at step `start`."""

    def __init__(self, graphs: Sequence[Graph], batch_graphs: int, seed: int, start: int) -> None:
        self.graphs, self.seed, self.start = graphs, seed, start
        self.size = min(batch_graphs, len(graphs))

    def at(self, step: int) -> list[Graph]:
        """The batch of one step."""
        return [self.graphs[self._index(position)] for position in range(step * self.size, (step + 1) * self.size)]

    def _index(self, position: int) -> int:
        turn, place = divmod(position, len(self.graphs))
        return int(np.random.default_rng([self.seed, turn]).permutation(len(self.graphs))[place])

    def __iter__(self) -> Iterator[list[Graph]]:
        step = self.start
        while True:
            yield self.at(step)
            step += 1


class GraphBatches(pl.LightningDataModule):
    """Training batches from step `start` on."""

    def __init__(self, graphs: Sequence[Graph], batch_graphs: int, seed: int, start: int) -> None:
        super().__init__()
        self.stream = GraphStream(graphs, batch_graphs, seed, start)

    def train_dataloader(self) -> DataLoader[list[Graph]]:
        return DataLoader(self.stream, batch_size=None, collate_fn=_unchanged)


def _unchanged(batch: list[Graph]) -> list[Graph]:
    return batch
