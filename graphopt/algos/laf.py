"""LAF: Learning Local Advantage Functions for Generalizable Graph Optimizations (Wu et al., 2020).

f(y_v = k; rest) = cost(y_v = k, rest) - cost(y_v = first choice, rest) is regressed by a graph network that reads the
graph and the current decision, from samples collected once and offline by Gibbs sampling (sections 3 and 4.1;
graphopt/advantages). Labels are log-compressed on the scale of each graph, the largest advantages make most of the
loss, and only the size of f is learned (section 4.2). Its predictions then say where progressive search should mutate
(section 4.3; graphopt/search/walks/progressive.py, graphopt/algos/laf_guide.py).

Our choices where the paper is silent (conf/algo/laf.yaml has the constants):
- Temperature tau: in units of the median size of an advantage around the start of each chain of Gibbs sampling.
- Samples: besides the visits of Gibbs sampling, surveys, which label all slots around one decision; training draws
  decisions with many labels, since the network reads the whole graph for each.
- Prioritised sampling is done by weights: the important labels of a decision share 90 % of its loss, the others 10 %,
  which is the expectation of drawing them so, with less noise.
- Network: the encoder reads each op's current choice, one-hot, and whether it has one; a two-layer head per op.
- More than two choices: f of every choice but the first is learned, and an op is as important as its largest |f|.
- Top alpha %: all ops whose prediction reaches the quantile, so that a constant model is uniform search.
Beyond the paper, off by default: an ensemble of heads on one encoder, each trained on its own half of the labels;
ordering by predicted gain; no second try before something near has changed; changes that the model alone accepts;
batches; a start from the same choice everywhere, where that is better; whole classes of alike ops before single ones
(graphopt/algos/laf_motifs.py); refitting to what the search has seen.

Shape legend: N ops of all graphs of a batch, H heads, K choices, E members, L labels, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor, nn

from graphopt.advantages.collecting import Collection, collect, names
from graphopt.advantages.labels import ExampleSet, TrainingExample, compressed
from graphopt.algos.laf_guide import Guidance, LearnedMutations, Refit
from graphopt.algos.laf_motifs import ClassMoves, leaps_and_classes
from graphopt.algos.learner import Learner, answering
from graphopt.core.graph import Graph
from graphopt.encoders.encoder import Encoder
from graphopt.encoders.features import batch, graph_features
from graphopt.errors import ConfigError
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decision
from graphopt.problems.task import AssignTask
from graphopt.search.walks.moves import F64, Slots, slots_in, slots_of
from graphopt.search.walks.progressive import Steps, first_walk, progressive_search
from graphopt.utils.ranges import Between, NotNegative, Share, Whole


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is predicted."""

    target: Literal["magnitude", "signed"]  # |f| (the paper's choice) or f
    members: Annotated[int, Between(1, 64)]  # of the ensemble; 1: none


@dataclass(frozen=True, kw_only=True)
class RegressionSettings:
    """The regression."""

    transform: Literal["log", "none"]  # of labels; none: one scale for all graphs
    priority: Share | None  # share of the loss that important labels make; null: every label weighs the same
    important: Share  # share of a graph's labels that is important: those with the largest |f|
    least_labels: Whole  # decisions with fewer labels are not drawn, where there are others
    rate: NotNegative
    gradient_clip: NotNegative


@dataclass(frozen=True, kw_only=True)
class LAFSearchSettings:
    """How `solve` spends a budget."""

    steps: Steps
    classes: ClassMoves
    guide: Guidance
    refit: Refit


class AdvantageNetwork(nn.Module):
    """[E, N, H, K] transformed advantages of every choice of every op."""

    def __init__(self, encoder: Encoder, heads: int, choices: int, members: int) -> None:
        super().__init__()
        self.encoder, self.shape = encoder, (heads, choices, members)
        width = encoder.width
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, heads * choices * members))

    def forward(self, data: Any, extra: Tensor) -> Tensor:
        h_ND, _ = self.encoder(data, extra)
        out: Tensor = self.head(h_ND).reshape(len(h_ND), *self.shape).permute(3, 0, 1, 2)
        return out


class LAF(Learner):
    """Local advantages guide progressive search; see the module's docstring. conf/algo/laf.yaml explains all."""

    network_settings = frozenset({"model"})
    heeds_held_out = True
    measure = "skill"

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int, model: Model,
                 collection: Collection, learning: RegressionSettings, search: LAFSearchSettings) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        classes = search.classes.depth is not None or search.classes.leaps > 0
        if model.target == "magnitude" and (search.guide.order == "gain" or search.guide.trusted or classes):
            raise ConfigError(
                "algo.search.guide.order=gain, .trusted and algo.search.classes need the sign: "
                "set algo.model.target=signed"
            )
        self.model, self.collection, self.learning, self.search = model, collection, learning, search
        self.network = AdvantageNetwork(encoder, len(task.heads), task.num_choices, model.members)
        self.automatic_optimization = False
        self._seed = seed
        self._examples: dict[str, ExampleSet] = {}  # by graph hash
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

    def predict(self, graphs: Sequence[Graph], decisions: Sequence[Decision]) -> Tensor:
        """[E, N, H, K] transformed f (or |f|) of every choice around a decision of each graph."""
        return self._predict_by(self.network, graphs, decisions)

    def _predict_by(self, network: nn.Module, graphs: Sequence[Graph], decisions: Sequence[Decision]) -> Tensor:
        data = batch([graph_features(graph, self.task.machine) for graph in graphs]).to(self.device)
        extra = np.concatenate([self._extra(graph, decision) for graph, decision in zip(graphs, decisions)])
        out: Tensor = network(data, torch.from_numpy(extra).to(self.device))
        return out

    def _extra(self, graph: Graph, decision: Decision) -> NDArray[np.float32]:
        one_hot = [decision[:, [h]] == np.arange(head.count) for h, head in enumerate(self.task.heads)]
        return np.concatenate([*one_hot, self.task.mask(graph)], 1).astype(np.float32)

    # ---- learning

    def gather(self, graphs: Sequence[Graph]) -> None:
        """Collects the samples that are not on disk yet, and reads them all. Their prices are training cost, also those
        that an earlier run has paid."""
        self._read(graphs)
        self._unit = float(np.mean([examples.sigma for examples in self._examples.values()] or [1.0]))

    def _read(self, graphs: Sequence[Graph]) -> None:
        stores = collect(graphs, self.task, self.cost, self.collection, self._seed)
        learned = [graph for graph in graphs if len(slots_in(self.task, graph))]
        for graph, store in zip(learned, stores, strict=True):
            shards = [store.read(name) for name in names(self.collection)]
            self._examples[graph.hash] = ExampleSet(shards, self.learning.important, self.learning.least_labels)
            if self.train_steps == 0:
                self.train_evals += sum(samples.evals for samples in shards)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        """One step of regression on a sampled decision of every graph."""
        taught = [graph for graph in graphs if graph.hash in self._examples]
        if not taught:
            return
        examples = [self._examples[graph.hash].draw(self._random) for graph in taught]
        predicted = self.predict(taught, [example.decision for example in examples])
        parts = torch.split(predicted, [graph.num_ops for graph in taught], 1)
        losses = [self._loss(g, example, part) for g, example, part in zip(taught, examples, parts, strict=True)]
        loss = torch.stack(losses).mean()
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        self.manual_backward(loss)
        norm = nn.utils.clip_grad_norm_(self.parameters(), self.learning.gradient_clip)
        if torch.isfinite(norm):
            optimizer.step()
        self.log_dict({"losses/regression": loss.detach(), "losses/gradient": norm})

    def _loss(self, graph: Graph, example: TrainingExample, predicted: Tensor) -> Tensor:
        """Weighted mean square of one decision's labels; predicted: [E, N, H, K] of this graph."""
        slots = slots_in(self.task, graph)
        label, weight = self.labels(graph, example)
        op, head = (torch.from_numpy(part[example.row]).to(predicted.device) for part in (slots.op, slots.head))
        weight_ELK = torch.from_numpy(self._shares(weight)).to(predicted.device)
        error_ELK = predicted[:, op, head] - torch.from_numpy(label).to(predicted.device)
        return (weight_ELK * error_ELK**2).sum() / len(predicted)

    def _shares(self, weight: NDArray[np.float32]) -> NDArray[np.float32]:
        """[E, L, K] weights; every member of an ensemble sees its own half of the labels."""
        members = self.model.members
        if members == 1:
            return weight[None]
        return np.asarray(weight * 2.0 * (self._random.random((members, *weight.shape)) < 0.5), np.float32)

    def labels(self, graph: Graph, example: TrainingExample) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """([L, K] what to predict, 0 where unknown; [L, K] weights, which sum to at most one). What is held out weighs
        nothing."""
        advantage, learning = example.advantage, self.learning
        known = np.isfinite(advantage)
        known[:, 0] = False  # f of the first choice is 0 by definition
        known[~graph.taught[slots_in(self.task, graph).op[example.row]]] = False
        value = np.where(known, advantage, 0.0)
        if self.model.target == "magnitude":
            value = np.abs(value)
        log = learning.transform == "log"
        label = compressed(value, self._examples[graph.hash].sigma) if log else value / self._unit
        if learning.priority is None:
            return label.astype(np.float32), (known / max(1, known.sum())).astype(np.float32)
        chosen, rest = known & example.important, known & ~example.important
        weight = learning.priority * chosen / max(1, chosen.sum())
        weight += (1.0 - learning.priority) * rest / max(1, rest.sum())
        return label.astype(np.float32), weight.astype(np.float32)

    # ---- solving

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and problem.open:
            with answering(problem.graph):
                self._search(problem, slots)

    def _search(self, problem: AssignProblem, slots: Slots) -> None:
        steps = self.search.steps
        walk = first_walk(problem, slots, steps.start)

        def predict(network: nn.Module, graph: Graph, decision: Decision) -> Tensor:
            return self._predict_by(network, [graph], [decision])

        signed = self.model.target == "signed"
        leaps_and_classes(
            problem, slots, walk, lambda decision: self._advantages(problem, slots, decision), self.search.classes
        )
        guide = LearnedMutations(problem, slots, self.network, predict, signed, self.search.guide, self.search.refit)
        progressive_search(problem, slots, walk, guide, steps)

    @torch.no_grad()
    def _advantages(self, problem: AssignProblem, slots: Slots, decision: Decision) -> F64:
        """[M, K] predicted f of every choice, in units of sigma; inf where a choice does not exist."""
        canonical = problem.task.canonical(problem.graph, decision)
        f_NHK = self.predict([problem.graph], [canonical]).mean(0).double().cpu().numpy()
        f_NHK[:, :, 0] = 0.0
        f_MK = at_slots(np.sign(f_NHK) * np.expm1(np.abs(f_NHK)) if self.learning.transform == "log" else f_NHK, slots)
        return np.nan_to_num(f_MK, nan=np.inf)

    # ---- judging

    def says(self, graph: Graph) -> list[float]:
        """Rank correlations of predictions and labels (|f| or f, as is learned) around the collected decisions of a
        graph: searches on a few graphs are too noisy to tell a trained network from an untrained one. Decisions around
        which all labels are equal say nothing."""
        if graph.hash not in self._examples:
            self._read([graph])
        examples = self._examples.get(graph.hash)
        if examples is None:  # nothing to decide
            return []
        found = [self._skill(graph, examples.at(moment)) for moment in range(len(examples.moments))]
        return [value for value in found if np.isfinite(value)]

    def _skill(self, graph: Graph, example: TrainingExample) -> float:
        taught = graph.taught[slots_in(self.task, graph).op[example.row]]
        true, guess = (part[taught, 1:] for part in self._around(graph, example))
        return correlation(np.abs(true) if self.model.target == "magnitude" else true, guess)

    def summary(self, mean: float) -> float:
        return mean

    @torch.no_grad()
    def _around(self, graph: Graph, example: TrainingExample) -> tuple[F64, F64]:
        """([L, K] true, [L, K] predicted advantages of a decision's labels); nan where a choice has none."""
        predicted = self.predict([graph], [example.decision]).mean(0).double().cpu().numpy()
        return example.advantage, at_slots(predicted, slots_in(self.task, graph))[example.row]


def correlation(true: F64, guess: F64) -> float:
    """Spearman's, of the pairs that are finite; nan where fewer than two are, or one side is constant."""
    known = np.isfinite(true) & np.isfinite(guess)
    true, guess = true[known], guess[known]
    if len(true) < 2 or np.ptp(true) == 0 or np.ptp(guess) == 0:
        return float("nan")
    return float(spearmanr(true, guess).statistic)


def at_slots(predicted: F64, slots: Slots) -> F64:
    """[M, K] of [N, H, K]; nan where a choice does not exist."""
    own: F64 = predicted[slots.op, slots.head].copy()
    own[np.arange(own.shape[1]) >= slots.choices[:, None]] = np.nan
    return own
