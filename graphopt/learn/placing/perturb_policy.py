"""`perturb_policy`: REGAL that starts from a local search's plan and learns where to perturb.

REGAL (Paliwal et al., ICLR 2020) learns from what distributions a genetic algorithm draws. On real graphs a local
search from a heuristic is ahead of that; so here the search is `hot_local`, and a network says for every op and kind of
move how likely the move makes the plan cheaper. It reads what a simulated run of the plan at hand says of the op
(`run_columns`), means of that over the op's makers, its readers and the graph. A share `trust` of the moves is drawn by
what it says, the others by `hot_local`'s rule.

Labels: along a search on each training graph moves are drawn by chance and priced; an improvement is one. Ops that are
held out (`Graph.train_mask`) teach nothing.

Ours. Shape legend: N ops, F columns, I inputs, M kinds of moves, R moves of a graph.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.core.graph import F64, I64, Graph
from graphopt.core.plan import Role
from graphopt.core.utils.marks import Count, NotNegative, Share, Width
from graphopt.core.utils.terminal import Bar
from graphopt.learn.learner import Learner, inference
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import OutOfBudget
from graphopt.search.genetic.evolution import F32, priced_by
from graphopt.search.walks.hot_local import COLUMNS, OBJECTIVES, GuidedWalk, RunColumns, answered
from graphopt.search.walks.key_moves import KINDS, Descent, WeightedMoves, first_plan

LIMIT = 5.0  # of a standardised input, either way
LEAST = 1e-9  # relative gain that counts as one


@dataclass(frozen=True, kw_only=True)
class MoveTeaching:
    """conf/algo/perturb_policy.yaml explains them."""

    evals: Count
    probes: Count
    rows: Count
    rate: NotNegative
    decay: NotNegative
    gradient_clip: NotNegative


@dataclass(frozen=True)
class Tried:
    """Moves that were tried along a search. inputs: [R, I]. kind: [R]. better: [R] 1 where the plan became cheaper."""

    inputs: F32
    kind: I64
    better: F32


def seen(columns: NDArray[np.float32], around: RunColumns, neighbours: bool) -> F32:
    """[N, I] columns [N, F] of an op; with neighbours also their means over its makers, its readers and the graph."""
    if not neighbours:
        return columns
    makers = _mean(columns, around.source, around.reader)
    readers = _mean(columns, around.reader, around.source)
    return np.concatenate([columns, makers, readers, np.broadcast_to(columns.mean(0), columns.shape)], 1)


def _mean(columns: NDArray[np.float32], said: I64, heard: I64) -> F32:
    total = np.zeros_like(columns)
    np.add.at(total, heard, columns[said])
    count = np.maximum(np.bincount(heard, minlength=len(columns)), 1)[:, None]
    return np.asarray(total / count, np.float32)


class MoveNetwork(nn.Module):
    """[R, I] -> [R, M] log-odds that a move of that kind makes the plan cheaper; level at first."""

    mean: Tensor
    spread: Tensor

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("spread", torch.ones(inputs))
        self.hidden = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, len(KINDS))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        standard = ((inputs - self.mean) / self.spread).clamp(-LIMIT, LIMIT)
        odds: Tensor = self.out(self.hidden(standard))
        return odds


class PerturbPolicy(Learner):
    """yaml: conf/algo/perturb_policy.yaml."""

    needs_one_of = frozenset({Role.DEVICE, Role.PRIORITY})
    objectives = OBJECTIVES
    network_settings = frozenset({"width", "neighbours"})
    applies_train_mask = True

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, walk: GuidedWalk, width: Width,
                 neighbours: bool, trust: Share, teaching: MoveTeaching) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.walk, self.neighbours, self.trust, self.teaching = walk, neighbours, trust, teaching
        self.network = MoveNetwork(len(COLUMNS) * (4 if neighbours else 1), width)
        self._tried: dict[str, Tried] = {}

    def made_for(self) -> dict[str, Any]:
        """Any task of these roles and number of devices."""
        return {"columns": list(COLUMNS), "moves": list(KINDS)}

    def configure_optimizers(self) -> Any:
        steps = max(2, int(self.trainer.estimated_stepping_batches))
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.teaching.rate, weight_decay=self.teaching.decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.teaching.rate, total_steps=steps + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    # ---- learning

    def prepare_training(self, graphs: Sequence[Graph]) -> None:
        """Tries moves on every training graph; each is an evaluation."""
        before = self.train_evals
        with Bar("try moves", len(graphs)) as bar:
            for graph in graphs:
                self._tried[graph.hash] = self._try(graph)
                bar.step(graph.name)
        if self.train_steps:
            self.train_evals = before
            return
        inputs = torch.from_numpy(np.concatenate([found.inputs for found in self._tried.values()]))
        if len(inputs):
            self.network.mean.copy_(inputs.mean(0))
            self.network.spread.copy_(inputs.std(0, correction=0) + 1e-3)

    def _try(self, graph: Graph) -> Tried:
        """Moves by chance along a local search from the best heuristic; of ops that may teach."""
        seed = (self.val_seed * 1_000_003 + int(graph.hash[:7], 16)) % 2**31
        problem = AssignProblem(graph, self.task, self.cost, evals=self.teaching.evals, seed=seed)
        columns, moves, rng = RunColumns(problem), WeightedMoves(problem, self.walk.moves), problem.rng
        price = priced_by(problem)
        empty = np.zeros((0, self.network.mean.shape[0]), np.float32)
        rows = [(empty, np.zeros(0, np.int64), np.zeros(0, np.float32))]
        with contextlib.suppress(OutOfBudget):
            at = Descent(*first_plan(problem, "heuristic", price))
            while moves.base.any():
                drawn = moves.drawn(moves.base, self.teaching.probes, rng)
                batch = moves.made(at.here, drawn, rng)
                found = price(batch)
                kept = graph.train_mask[drawn.op]
                own = seen(columns.of(at.here), columns, self.neighbours)[drawn.op]
                better = (found < at.cost * (1.0 - LEAST)).astype(np.float32)
                rows.append((own[kept], drawn.kind[kept], better[kept]))
                at.step(batch, found)
                if at.since >= self.walk.patience:
                    kick = moves.drawn(moves.base, self.walk.kick, rng)
                    keys = moves.made(at.best, kick, rng, together=True)[0]
                    at.restart(keys, float(price(keys[None])[0]))
        self._count(problem.evals)
        return Tried(*(np.concatenate(part) for part in zip(*rows, strict=True)))

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        parts = [self._drawn(self._tried[graph.hash]) for graph in graphs]
        inputs, kind, better = (torch.cat(each).to(self.device) for each in zip(*parts, strict=True))
        odds = self.network(inputs).gather(1, kind[:, None])[:, 0]
        loss = nn.functional.binary_cross_entropy_with_logits(odds, better, reduction="sum") / max(1, len(better))
        self.log("losses/moves", loss.detach())
        return loss

    def _drawn(self, tried: Tried) -> tuple[Tensor, Tensor, Tensor]:
        """Some rows: inputs, kinds, whether the plan became cheaper."""
        rows = self._random.integers(0, len(tried.kind), self.teaching.rows if len(tried.kind) else 0)
        return (torch.from_numpy(tried.inputs[rows]), torch.from_numpy(tried.kind[rows]),
                torch.from_numpy(tried.better[rows]))  # fmt: skip

    # ---- answering

    def solve(self, problem: AssignProblem) -> None:
        answered(problem, self.walk, self._says)

    def _says(self, problem: AssignProblem, around: RunColumns, columns: NDArray[np.float32]) -> F64:
        """[M, N] a mixture of what the network says and of the rule, each in its share of all moves."""
        inputs = torch.from_numpy(seen(columns, around, self.neighbours))
        with inference(problem.graph):
            chance = torch.sigmoid(self.network(inputs.to(self.device))).T.double().cpu().numpy()
        rule = self.walk.hot(problem, around, columns)
        return np.asarray(self.trust * chance / chance.mean() + (1.0 - self.trust) * rule / rule.mean())
