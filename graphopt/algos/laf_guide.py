"""Where progressive search should mutate, by predicted local advantages (LAF, section 4.3).

Shape legend: N ops, H heads, K choices, E members, M slots.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.core.graph import Graph
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.search.walks.moves import INFEASIBLE, Slots
from graphopt.search.walks.progressive import Uniform
from graphopt.utils.ranges import Between, Count, NotNegative, Whole

Predict = Callable[[nn.Module, Graph, Decision], Tensor]
"""[E, N, H, K] predictions of a network around a decision."""


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """What the predictions decide."""

    top: Annotated[float, Between(0.0, 100.0)]  # alpha: one is drawn of so many per cent of the ops that matter most
    refresh: Count  # mutations between two predictions (the paper: 1)
    order: Literal["magnitude", "gain"]  # by |f| (the paper), or by the predicted gain of the best other choice
    fresh: bool  # an op is not picked again before a neighbour has changed; with none left, uniformly (paper: false)
    trusted: Whole  # further changes of predicted gain that the model alone makes to every candidate (the paper: 0)
    optimism: NotNegative  # standard deviations of the ensemble added to its mean


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Learning from the search's own prices."""

    every: Whole  # prices between two refits; 0: none
    steps: Whole
    rate: NotNegative


class LearnedMutations:
    """A `Guide` by a model. Uniform among the `top` per cent; ties with the last of them count as well."""

    def __init__(self, problem: AssignProblem, slots: Slots, network: nn.Module, predict: Predict, signed: bool,
                 guidance: Guidance, refit: Refit) -> None:  # fmt: skip
        """signed: predictions have the sign of f."""
        self._signed = signed
        self._problem, self._slots, self._guidance, self._refit = problem, slots, guidance, refit
        self._predict, self._network = predict, network
        self._ops, self._uniform = np.unique(slots.op), Uniform(problem, slots)
        self._pool: list[int] = []
        self._left = 0  # picks before the next prediction
        self._tried = np.zeros(problem.graph.num_ops, np.bool_)
        self._seen: list[tuple[int, int, int, float]] = []  # (slot, choice before, choice after, change of score)
        self._optimizer: torch.optim.Optimizer | None = None  # of refits
        self._gain = np.zeros(0)  # [M] predicted, by the best other choice of each slot
        self._choice = np.zeros(0, np.int64)  # [M] that choice

    def pick(self, decision: Decision) -> tuple[int, int | None]:
        if self._guidance.fresh and self._tried[self._ops].all():
            return self._uniform.pick(decision)
        if self._left <= 0 or not self._pool:
            self._look(decision)
        self._left -= 1
        at = int(self._problem.rng.integers(len(self._pool)))
        op = self._pool.pop(at) if self._guidance.fresh else self._pool[at]
        first, end = int(self._slots.first[op]), int(self._slots.first[op + 1])
        if self._guidance.order == "gain":
            slot = first + int(np.argmax(self._gain[first:end]))
            choice = int(self._choice[slot])
            return slot, choice if choice != decision[op, self._slots.head[slot]] else None
        return int(self._problem.rng.integers(first, end)), None

    def extend(self, candidate: Decision) -> None:
        if not self._guidance.trusted:
            return
        hopeful = np.flatnonzero(self._gain > 0.0)
        count = min(self._guidance.trusted, len(hopeful))
        rows = self._problem.rng.choice(hopeful, count, replace=False)
        candidate[self._slots.op[rows], self._slots.head[rows]] = self._choice[rows]

    def learn(self, decision: Decision, slot: int, choice: int, change: float, accepted: bool) -> None:
        op = int(self._slots.op[slot])
        self._tried[op] = True
        if accepted and change < 0.0:
            for ptr, column in (self._problem.graph.predecessors, self._problem.graph.successors):
                self._tried[column[ptr[op] : ptr[op + 1]]] = False
        if self._refit.every and abs(change) < INFEASIBLE / 2:
            self._seen.append((slot, int(decision[op, self._slots.head[slot]]), choice, change))
            if len(self._seen) % self._refit.every == 0:
                self._fit(decision)

    def _look(self, decision: Decision) -> None:
        """Predicts anew, and fills the pool with the most important ops."""
        self._left = self._guidance.refresh
        predicted = self._predict(self._network, self._problem.graph, decision)
        f_EMK = predicted[:, self._slots.op, self._slots.head].detach().double().cpu().numpy()
        value = np.full(self._problem.graph.num_ops, -np.inf)
        np.maximum.at(value, self._slots.op, self._worth(f_EMK, decision))
        ops = self._ops
        if self._guidance.fresh:
            ops = ops[~self._tried[ops]]
        count = max(1, round(len(self._ops) * self._guidance.top / 100.0))
        least = np.sort(value[ops])[-min(count, len(ops))]
        self._pool = ops[value[ops] >= least].tolist()

    def _worth(self, f_EMK: NDArray[np.float64], decision: Decision) -> NDArray[np.float64]:
        """[M] how much a mutation of each slot is worth; notes gains for those who trust them."""
        slots, choice = self._slots, np.arange(f_EMK.shape[2])
        absent = choice >= slots.choices[:, None]
        f_EMK[:, :, 0] = 0.0
        f_EMK[:, absent] = 0.0
        if self._signed:
            now = decision[slots.op, slots.head].astype(np.int64)
            gain_MK = self._joined(f_EMK[:, np.arange(len(slots)), now][:, :, None] - f_EMK)
            gain_MK = np.where(absent | (choice == now[:, None]), -np.inf, gain_MK)
            self._choice, self._gain = gain_MK.argmax(1), gain_MK.max(1)
        return self._gain if self._guidance.order == "gain" else self._joined(np.abs(f_EMK).max(2))

    def _joined(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The ensemble's mean, and some of its doubt; values: [E, ...]."""
        return np.asarray(values.mean(0) + self._guidance.optimism * values.std(0))

    @torch.enable_grad()
    def _fit(self, decision: Decision) -> None:
        """Some steps towards what mutations around each slot have changed: of a copy of the network, this search's own.

        Of a mutated neighbourhood the change counts for its centre, which is what predicting it is for.
        """
        if self._optimizer is None:
            self._network = copy.deepcopy(self._network)
            self._optimizer = torch.optim.Adam(self._network.parameters(), lr=self._refit.rate)
        rows, before, after = (np.array(part) for part in list(zip(*self._seen))[:3])
        op, head, seen = self._slots.op[rows], self._slots.head[rows], np.arange(len(rows))
        target = torch.from_numpy(self._targets())
        for _ in range(self._refit.steps):
            f_ERK = self._predict(self._network, self._problem.graph, decision)[:, op, head]
            f_ERK = torch.cat([torch.zeros_like(f_ERK[..., :1]), f_ERK[..., 1:]], -1)
            guess = f_ERK[:, seen, after] - f_ERK[:, seen, before]
            guess = guess if self._signed else guess.abs()
            loss = ((guess - target.to(guess.device)) ** 2).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        self._left = 0

    def _targets(self) -> NDArray[np.float32]:
        """[R] changes seen, log-compressed on the scale of their own median."""
        change = np.array([change for *_, change in self._seen])
        size = np.abs(change)
        sigma = float(np.median(size[size > 0])) if (size > 0).any() else 1.0
        label = np.log1p(size / sigma)
        return np.asarray(np.sign(change) * label if self._signed else label, np.float32)
