"""LAF: Learning Local Advantage Functions for Generalizable Graph Optimizations (Wu et al., 2020).

The local advantage f(y_v = k; rest) = cost(y_v = k, rest) - cost(y_v = first choice, rest) is regressed by a graph
network that reads the graph and the current decision. It learns from samples collected once and offline by Gibbs
sampling (sections 3 and 4.1; graphopt.learn.advantages). The predictions say where progressive search mutates (section
4.3; graphopt.search.walks.local).

The paper (its section)                   | algo=laf_paper               | algo=laf
labels by visits of Gibbs sampling (4.1)  | the same                     | also surveys of all slots around one decision
temperature tau: open                     | in units of the median size of an advantage around the chain's start
log-compressed by the median |f| (4.2)    | the same, without changes of exactly 0: on some graphs most are
90 % of draws from the largest 10 % (4.2) | the same, the largest of each graph (graphopt.learn.advantages.SampleSet)
|f| is regressed (4.2)                    | the same                     | `model.target=signed`: f, which pays
two choices                               | f of every choice but the first; an op counts by its largest |f|
network, features: open                   | any encoder, each op's choice one-hot and its mask, a two-layer head
top alpha % of the ops (4.3); alpha: open | 10; all at or above the quantile: a constant model is uniform search
predictions of every decision (4.3)       | the same                     | every `guide.refresh` mutations
a k-neighbourhood mutates (4.3); k: open  | 1, each slot at a rate of .1 | the same, and the centre always
-                                         | `guide.order=gain`: by the predicted gain instead of by size
-                                         | `guide.fresh`: no second try of an op before a neighbour has changed
-                                         | `refit.every`: learns on from the prices of its own search

Shape legend: N ops of all graphs of a batch, H heads, K choices, L labels, M slots, R mutations seen, D width.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

from graphopt.core.errors import ConfigError
from graphopt.core.graph import F64, Graph
from graphopt.core.plan import Decision
from graphopt.core.utils.marks import Between, Count, NotNegative, Share, Whole
from graphopt.learn.advantages import Collection, ExampleSet, SampleSet, TrainingExample, collect, compressed
from graphopt.learn.encoders.encoder import Encoder
from graphopt.learn.encoders.features import batch, graph_features
from graphopt.learn.learner import Learner, inference
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel
from graphopt.search.walks.local import Steps, Uniform, progressive_search
from graphopt.search.walks.moves import INFEASIBLE, Slots, slots_in, slots_of, start_walk

Predict = Callable[[nn.Module, Graph, Decision], Tensor]
"""[N, H, K] predictions of a network around a decision."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The target of the network."""

    target: Literal["magnitude", "signed"]  # |f| (the paper's choice) or f


@dataclass(frozen=True, kw_only=True)
class RegressionSettings:
    """The regression."""

    transform: Literal["log", "none"]  # of labels; none: one scale for all graphs
    priority: Share | None  # share of draws that are important samples; null: every sample equally often
    important: Share  # share of a graph's samples that is important: those with the largest |f|
    least_labels: Whole  # decisions with fewer labels are not drawn, where there are others
    rate: NotNegative
    gradient_clip: NotNegative


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """How predictions guide the search."""

    top: Annotated[float, Between(0.0, 100.0)]  # alpha: one is drawn of so many per cent of the ops that matter most
    refresh: Count  # mutations between two predictions (the paper: 1)
    order: Literal["magnitude", "gain"]  # by |f| (the paper), or by the predicted gain of the best other choice
    fresh: bool  # an op is not picked again before a neighbour has changed; with none left, uniformly (paper: false)


@dataclass(frozen=True, kw_only=True)
class Refit:
    """Learning from the search's own prices."""

    every: Whole  # prices between two refits; 0: none
    steps: Whole
    rate: NotNegative


@dataclass(frozen=True, kw_only=True)
class LAFSearchSettings:
    """How `solve` spends a budget."""

    steps: Steps
    guide: Guidance
    refit: Refit


class AdvantageNetwork(nn.Module):
    """[N, H, K] transformed advantages of every choice of every op."""

    def __init__(self, encoder: Encoder, heads: int, choices: int) -> None:
        super().__init__()
        self.encoder, self.shape = encoder, (heads, choices)
        width = encoder.width
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, heads * choices))

    def forward(self, data: Any, extra: Tensor) -> Tensor:
        h_ND, _ = self.encoder(data, extra)
        out: Tensor = self.head(h_ND).reshape(len(h_ND), *self.shape)
        return out


class LAF(Learner):
    """Local advantages guide progressive search; see the module's docstring. conf/algo/laf.yaml explains all."""

    network_settings = frozenset({"model"})
    applies_train_mask = True
    metric = "skill"

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int, model: Model,
                 collection: Collection, learning: RegressionSettings, search: LAFSearchSettings) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        if model.target == "magnitude" and search.guide.order == "gain":
            raise ConfigError("algo.search.guide.order=gain needs the sign: set algo.model.target=signed")
        self.model, self.collection, self.learning, self.search = model, collection, learning, search
        self.network = AdvantageNetwork(encoder, len(task.heads), task.num_choices)
        self.automatic_optimization = False
        self._seed = seed
        self._examples: dict[str, ExampleSet] = {}  # by graph hash
        self._graphs: dict[str, Graph] = {}  # of the same
        self._samples = SampleSet({}, None)  # of the training graphs
        self._unit = 1.0  # of labels without a transform

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        """Inputs per op that LAF adds to the encoder's: the current choice, one-hot, and the mask of every head."""
        return sum(head.count + 1 for head in task.heads)

    def made_for(self) -> dict[str, Any]:
        return {**super().made_for(), "target": self.model.target}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning.rate)

    # ---- predicting

    def predict(self, network: nn.Module, graphs: Sequence[Graph], decisions: Sequence[Decision]) -> Tensor:
        """[N, H, K] transformed f (or |f|) of every choice around a decision of each graph."""
        data = batch([graph_features(graph, self.task.machine) for graph in graphs]).to(self.device)
        extra = []
        for graph, decision in zip(graphs, decisions, strict=True):
            one_hot = [decision[:, [h]] == np.arange(head.count) for h, head in enumerate(self.task.heads)]
            extra.append(np.concatenate([*one_hot, self.task.mask(graph)], 1).astype(np.float32))
        out: Tensor = network(data, torch.from_numpy(np.concatenate(extra)).to(self.device))
        return out

    # ---- learning

    def prepare_training(self, graphs: Sequence[Graph]) -> None:
        """Collects the samples that are not on disk yet, and reads them all. Their prices are training cost, also those
        that an earlier run has paid."""
        self._read(graphs, range(self.collection.surveys ^ 1, self.collection.sweeps + 1))
        hashes = {graph.hash for graph in graphs} & self._examples.keys()
        self._samples = SampleSet({key: self._examples[key] for key in sorted(hashes)}, self.learning.priority)
        self._unit = float(np.mean([examples.sigma for examples in self._examples.values()] or [1.0]))

    def _read(self, graphs: Sequence[Graph], turns: Sequence[int]) -> None:
        """The samples of these turns of each chain."""
        if not turns:
            raise ConfigError("algo.collection.surveys=false learns from visits: set algo.collection.sweeps above 0")
        stores = collect(graphs, self.task, self.cost, self.collection, self._seed)
        learned = [graph for graph in graphs if len(slots_in(self.task, graph))]
        for graph, store in zip(learned, stores, strict=True):
            shards = {name: store.read(name) for name in self.collection.names()}
            read, taught = self.collection.names(turns), graph.train_mask[slots_in(self.task, graph).op]
            self._examples[graph.hash] = ExampleSet(
                [shards[name] for name in read], self.learning.important, self.learning.least_labels, taught
            )
            self._graphs[graph.hash] = graph
            if self.train_steps == 0:
                self.train_evals += sum(samples.evals for samples in shards.values())

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        """One step of regression on sampled decisions of all graphs, as many as the trainer hands graphs over."""
        if not self._samples.decisions:
            return
        drawn = [self._samples.draw(self._random) for _ in graphs]
        known = [self._graphs[key] for key, _, _ in drawn]
        predicted = self.predict(self.network, known, [example.decision for _, example, _ in drawn])
        parts, losses = torch.split(predicted, [graph.num_ops for graph in known]), []
        for graph, (_, example, share), own in zip(known, drawn, parts, strict=True):
            slots, label, weight = slots_in(self.task, graph), self.labels(graph, example), share.astype(np.float32)
            op, head = (torch.from_numpy(part[example.row]).to(own.device) for part in (slots.op, slots.head))
            error_LK = own[op, head] - torch.from_numpy(label).to(own.device)
            losses.append((torch.from_numpy(weight).to(own.device) * error_LK**2).sum())
        loss = torch.stack(losses).mean()
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        self.manual_backward(loss)
        norm = nn.utils.clip_grad_norm_(self.parameters(), self.learning.gradient_clip)
        if torch.isfinite(norm):
            optimizer.step()
        self.log_dict({"losses/regression": loss.detach(), "losses/gradient": norm})

    def labels(self, graph: Graph, example: TrainingExample) -> NDArray[np.float32]:
        """[L, K] targets of the prediction, 0 where unknown."""
        value = np.where(example.known, example.advantage, 0.0)
        if self.model.target == "magnitude":
            value = np.abs(value)
        log = self.learning.transform == "log"
        label = compressed(value, self._examples[graph.hash].sigma) if log else value / self._unit
        return label.astype(np.float32)

    # ---- solving

    def solve(self, problem: AssignProblem) -> None:
        slots, steps = slots_of(problem), self.search.steps
        if not len(slots) or not problem.open:
            return

        with inference(problem.graph):
            walk = start_walk(problem, slots, steps.start)
            guide = LearnedMutations(
                problem, slots, self.network, lambda network, graph, one: self.predict(network, [graph], [one]),
                self.model.target == "signed", self.search.guide, self.search.refit,
            )  # fmt: skip
            progressive_search(problem, slots, walk, guide, steps)

    # ---- validation

    def validation_values(self, graph: Graph) -> list[float]:
        """Rank correlations of predictions and labels (|f| or f, as is learned) around the collected decisions of a
        graph. Searches on a few graphs are too noisy to tell a trained network from an untrained one. Decisions around
        which all labels are equal say nothing."""
        if graph.hash not in self._examples:
            self._read([graph], range(self.collection.sweeps + 1 if self.collection.surveys else 1))
        examples, slots, found = self._examples.get(graph.hash), slots_in(self.task, graph), list[float]()
        for moment in range(0 if examples is None else len(examples.moments)):  # none where nothing is to decide
            example = self._examples[graph.hash].at(moment)
            taught = graph.train_mask[slots.op[example.row]]
            with torch.no_grad():
                predicted = self.predict(self.network, [graph], [example.decision]).double().cpu().numpy()
            own = predicted[slots.op, slots.head]  # [M, K]
            own[np.arange(own.shape[1]) >= slots.choices[:, None]] = np.nan  # where a choice does not exist
            true = example.advantage[taught, 1:]
            true = np.abs(true) if self.model.target == "magnitude" else true
            found.append(correlation(true, own[example.row][taught, 1:]))
        return [value for value in found if np.isfinite(value)]

    def validation_metric(self, mean: float) -> float:
        return mean


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
        self._seen_from: Decision | None = None  # the decision of the last predictions
        self._value = np.zeros(0)  # [N] the value of mutating each op, by that
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
        if self._seen_from is None or not np.array_equal(self._seen_from, decision):
            predicted = self._predict(self._network, self._problem.graph, decision)
            f_MK = predicted[self._slots.op, self._slots.head].detach().double().cpu().numpy()
            self._seen_from, self._value = decision.copy(), np.full(self._problem.graph.num_ops, -np.inf)
            np.maximum.at(self._value, self._slots.op, self._worth(f_MK, decision))
        value = self._value
        ops = self._ops[~self._tried[self._ops]] if self._guidance.fresh else self._ops
        count = max(1, round(len(self._ops) * self._guidance.top / 100.0))
        least = np.sort(value[ops])[-min(count, len(ops))]
        self._pool = ops[value[ops] >= least].tolist()

    def _worth(self, f_MK: F64, decision: Decision) -> F64:
        """[M] how much a mutation of each slot is worth; keeps the best other choice of each and its gain."""
        slots, choice = self._slots, np.arange(f_MK.shape[1])
        absent = choice >= slots.choices[:, None]
        f_MK[:, 0] = 0.0
        f_MK[absent] = 0.0
        if self._guidance.order == "magnitude":
            return np.asarray(np.abs(f_MK).max(1))
        now = decision[slots.op, slots.head].astype(np.int64)
        gain_MK = np.where(absent | (choice == now[:, None]), -np.inf, f_MK[np.arange(len(slots)), now][:, None] - f_MK)
        self._choice, self._gain = gain_MK.argmax(1), gain_MK.max(1)
        return self._gain

    @torch.enable_grad()
    def _fit(self, decision: Decision) -> None:
        """Some steps towards the changes of cost by mutations around each slot: of a copy of the network, this search's
        own.

        Of a mutated neighbourhood the change counts for its centre, as the prediction does.
        """
        if self._optimizer is None:
            self._network = copy.deepcopy(self._network)
            self._optimizer = torch.optim.Adam(self._network.parameters(), lr=self._refit.rate)
        rows, before, after = (np.array(part) for part in list(zip(*self._seen))[:3])
        op, head, seen = self._slots.op[rows], self._slots.head[rows], np.arange(len(rows))
        change = np.array([change for *_, change in self._seen])
        size = np.abs(change)
        sigma = float(np.median(size[size > 0])) if (size > 0).any() else 1.0  # labels are on the scale of their median
        label = compressed(change, sigma) if self._signed else compressed(size, sigma)
        target = torch.from_numpy(label.astype(np.float32))
        for _ in range(self._refit.steps):
            f_RK = self._predict(self._network, self._problem.graph, decision)[op, head]
            f_RK = torch.cat([torch.zeros_like(f_RK[:, :1]), f_RK[:, 1:]], -1)
            guess = f_RK[seen, after] - f_RK[seen, before]
            guess = guess if self._signed else guess.abs()
            loss = ((guess - target.to(guess.device)) ** 2).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        self._left, self._seen_from = 0, None


def correlation(true: F64, guess: F64) -> float:
    """Spearman's, of the pairs that are finite; nan where fewer than two are, or one side is constant."""
    known = np.isfinite(true) & np.isfinite(guess)
    true, guess = true[known], guess[known]
    if len(true) < 2 or np.ptp(true) == 0 or np.ptp(guess) == 0:
        return float("nan")
    return float(spearmanr(true, guess).statistic)
