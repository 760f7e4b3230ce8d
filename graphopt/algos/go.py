"""GO: Transferable Graph Optimizers for ML Compilers (Zhou et al., NeurIPS 2020).

An inductive graph encoder reads the graph; segment-recurrent attention over the ops in topological order, without
positional encoding, reads what the encoder wrote; each layer's input is modulated by the graph state (superposition); a
head per kind of choice gives a distribution for every op at once. Decoding is iterative and non-autoregressive:
y(t) ~ p(y | G, y(t-1)), all ops in parallel, the previous iteration's decisions fed as input (section 3 of the paper).
Several tasks (heads: placement, then scheduling, then fusion) share the attention layers, which with
`network.recurrent` are applied once for each, one after the other: each sees the graph, what those before have decided
in this iteration and, as a residual, what the layers said to the one before; only the last linear layer is a task's
own. PPO over batches of graphs of any sizes; the reward is -sqrt(time / time of the default), illegal plans -10.

Our choices where the paper is silent, or where another choice was measured to be better (docs/results/fusion.md):
- Attention, superposition and further iterations are off by default: no gain of them is shown (docs/placement.md).
  `algo=go_paper` has them.
- y(0) is the default heuristic's decision, and training starts near it: a constant added to the logits of the default's
  choice gives it the probability `prior` of the head before anything is learned.
- The probability ratio is clipped per op: the joint ratio of thousands of independent factors would leave the range
  at once.
- Credit is a weighted sum of the graph's standardised reward, shared by all its ops (the paper's), and of each op's own
  counterfactual advantage: the price after changing this op alone, minus the price of the plan, log-compressed on the
  scale of the graph's median, times the probability of the other choices (so that a settled op stops learning). Where
  the cost model prices flips exactly they are all used, else a random sample of `flips` slots is priced.
- Every iteration's decisions are priced and rewarded, not only the last one's.
- In a share `alone` of the updates one task alone is decided and the others stay as by default: single-task training.
- Fine-tuning (`search.tuning`): in `solve`, some PPO updates on the graph at hand, from the trained weights, billed to
  the budget; the weights are as before afterwards.
- `solve` prices the greedy decisions of every iteration, uniform decisions (the same choice everywhere) with the
  policy's answers to them, and some samples; the rest of the budget goes to single changes in the order of the
  policy's preference given the best plan so far (graphopt.algos.guided).

Shape legend: N ops of all graphs of a batch, G graphs, S samples, H heads, K choices, D width.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.algos.go_credit import Billed, Credit
from graphopt.algos.go_policy import EncodedGraphs, GOObservation, GOPolicy, PolicySizes
from graphopt.algos.guided import guided_search
from graphopt.algos.learner import Learner, answering, stored_numbers
from graphopt.algos.placing.op_groups import learning_inside
from graphopt.algos.ppo import PPOSettings, Trial, clipped_loss, of_chosen, sample
from graphopt.core.graph import Graph
from graphopt.encoders.encoder import Encoder
from graphopt.encoders.features import batch, graph_features
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decision
from graphopt.problems.task import AssignTask
from graphopt.search.walks.moves import Slots, slots_of
from graphopt.utils.ranges import Between, Count, NotNegative, Positive, Share, Whole


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Updates on the graph that is being solved."""

    steps: Annotated[int, Between(0, 1000)]  # at most
    share: Share  # of the budget, at most
    rate: NotNegative
    flips: Whole  # slots priced per decision, as PPOSettings.flips


@dataclass(frozen=True, kw_only=True)
class GOSearchSettings:
    """How `solve` spends a budget."""

    tuning: Tuning
    samples: Whole
    temperature: Positive
    refresh: Count
    deltas: bool


class GO(Learner):
    """PPO on `GOPolicy`; see the module's docstring. yaml: conf/algo/go.yaml explains every hyper-parameter."""

    network_settings = frozenset({"network"})

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int,
                 network: PolicySizes, learning: PPOSettings, search: GOSearchSettings) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.policy = GOPolicy(encoder, task.heads, network)
        self.network, self.learning, self.search = network, learning, search
        self.automatic_optimization = False
        self.credit = Credit(task, learning, self.pricing, self.initial_cost, self._random)
        self._inputs: dict[str, tuple[Any, Tensor, Tensor, Tensor]] = {}

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        """Inputs per op that GO adds to the encoder's: default choice and mask of every head."""
        return 2 * len(task.heads)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning.rate)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["past_rewards"] = {graph: list(past) for graph, past in self.credit.past.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        past = {graph: stored_numbers(values, 3) for graph, values in checkpoint["past_rewards"].items()}
        self.credit.past = {graph: (mean, square, int(trials)) for graph, (mean, square, trials) in past.items()}

    # ---- asking the policy

    def observe(self, graphs: list[Graph]) -> GOObservation:
        """The policy's input for a batch of graphs."""
        parts = [self._parts(graph) for graph in graphs]
        data, extra, default, allowed = zip(*parts)
        to = self.device
        return GOObservation(
            batch(data).to(to), torch.cat(extra).to(to), torch.cat(default).to(to), torch.cat(allowed).to(to)
        )

    def _parts(self, graph: Graph) -> tuple[Any, Tensor, Tensor, Tensor]:
        if graph.hash not in self._inputs:
            default_NH = torch.from_numpy(self.task.initial(graph).astype(np.int64))
            mask_NH = torch.from_numpy(np.ascontiguousarray(self.task.mask(graph)))
            counts_NH1 = torch.from_numpy(self.task.counts(graph))[:, :, None]
            most = torch.tensor([max(1, head.count - 1) for head in self.task.heads])
            choice = torch.arange(self.task.num_choices)
            allowed = torch.where(mask_NH[:, :, None], choice < counts_NH1, choice == default_NH[:, :, None])
            extra = torch.cat([default_NH / most, mask_NH.float()], 1).float()
            self._inputs[graph.hash] = (graph_features(graph, self.task.machine), extra, default_NH, allowed)
        return self._inputs[graph.hash]

    # ---- learning

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        """One PPO update: sample decisions for every graph, price them, improve the policy for some epochs."""
        observation = self._opened(self.observe(graphs))
        with torch.no_grad():
            trials, reward = self._try(graphs, observation, self.credit)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        said = self._improve(optimizer, self.manual_backward, observation, trials)
        self.log("reward", reward, prog_bar=True)
        self.log_dict(said)

    def _opened(self, observation: GOObservation) -> GOObservation:
        """With all heads open, or, in a share of the updates, one alone."""
        heads = len(self.task.heads)
        if heads == 1 or self._random.random() >= self.learning.alone:
            return observation
        closed = torch.arange(heads, device=observation.allowed.device) != int(self._random.integers(heads))
        default = nn.functional.one_hot(observation.default, observation.allowed.shape[2]).bool()
        return replace(observation, allowed=torch.where(closed[:, None], default, observation.allowed))

    def _improve(self, optimizer: Any, backward: Callable[[Tensor], None], observation: GOObservation,
                 trials: list[Trial]) -> dict[str, Tensor]:  # fmt: skip
        """Some epochs of PPO on what was tried; what to log."""
        for _ in range(self.learning.epochs):
            loss, entropy = clipped_loss(self.policy, observation, trials, self.learning)
            optimizer.zero_grad()
            backward(loss)
            norm = nn.utils.clip_grad_norm_(self.parameters(), self.learning.gradient_clip)
            if torch.isfinite(norm):
                optimizer.step()
        return {"losses/policy": loss.detach(), "losses/entropy": entropy.detach(), "losses/gradient": norm}

    def _try(self, graphs: list[Graph], observation: GOObservation, credit: Credit) -> tuple[list[Trial], float]:
        """The trials of one update and their mean reward."""
        encoded = self.policy.encode(observation)
        previous, trials, rewards = observation.default, [], []
        for _ in range(self.network.iterations):
            chosen = self.policy.decide(observation, encoded, previous, lambda p: sample(p, self.learning.samples))
            log_prob = of_chosen(self.policy(observation, encoded, previous, chosen), chosen)
            judged = credit.judge(graphs, chosen)
            shared, own = judged.shared.to(log_prob.device), judged.own.to(log_prob.device)
            # an op's own credit is counted from the expectation over its choices (counterfactual baseline)
            trials.append(Trial(previous, chosen, log_prob, shared + own * (1.0 - log_prob.exp())))
            previous = judged.picked.to(log_prob.device)
            rewards.append(judged.reward)
        return trials, float(np.mean(rewards))

    # ---- solving

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots):
            before = deepcopy(self.state_dict()) if self.search.tuning.steps else {}
            try:
                self._tune(problem)
                with answering(problem.graph):
                    self._search(problem, slots)
            finally:
                if before:
                    self.load_state_dict(before)

    def _tune(self, problem: AssignProblem) -> None:
        """PPO updates on this graph; the learner's randomness and memory stay as they are."""
        tuning, each = self.search.tuning, self.learning.samples * self.network.iterations
        each *= 1 + (tuning.flips if self.learning.flip_weight else 0)
        steps = min(tuning.steps, int(tuning.share * problem.evals_cap) // each)
        if not steps:
            return
        random = np.random.default_rng(int(problem.rng.integers(2**31)))
        learning = replace(self.learning, flips=tuning.flips)
        credit = Credit(self.task, learning, lambda graph: Billed(problem), self.initial_cost, random)
        credit.past = dict(self.credit.past)
        with learning_inside(problem), torch.enable_grad():
            optimizer = torch.optim.Adam(self.parameters(), lr=tuning.rate)
            observation = self.observe([problem.graph])
            for _ in range(steps):
                with torch.no_grad():
                    trials, _ = self._try([problem.graph], observation, credit)
                self._improve(optimizer, torch.Tensor.backward, observation, trials)

    def _search(self, problem: AssignProblem, slots: Slots) -> None:
        observation = self.observe([problem.graph])
        encoded = self.policy.encode(observation)
        greedy = self._decode(problem, observation, encoded)
        if not problem.open:
            problem.commit(greedy[-1])
            return
        problem.cost(np.stack(greedy[-problem.remaining :]))
        self._price_answers(problem, observation, encoded)
        self._price_samples(problem, observation, encoded, greedy[-1])

        def prefer(decision: Decision) -> NDArray[np.float32]:
            return np.asarray(self._given(observation, encoded, decision).cpu().numpy())

        guided_search(problem, slots, prefer, self.search.refresh, self.search.deltas)

    def _decode(self, problem: AssignProblem, observation: GOObservation, encoded: EncodedGraphs) -> list[Decision]:
        """The most likely decisions of every iteration, canonical."""
        out: list[Decision] = []
        previous = observation.default
        for _ in range(self.network.iterations):
            choice = self.policy.decide(observation, encoded, previous, lambda log_p: log_p.argmax(-1))[0]
            out.append(self.task.canonical(problem.graph, choice.cpu().numpy().astype(np.int16)))
            previous = torch.from_numpy(out[-1].astype(np.int64)).to(self.device)
        return out

    def _price_answers(self, problem: AssignProblem, observation: GOObservation, encoded: EncodedGraphs) -> None:
        """Other places to start from: the same choice everywhere, and what the policy answers to that.

        Only for tasks with one head of few choices, and at most a quarter of the budget.
        """
        count, counts = self.task.num_choices, self.task.counts(problem.graph)[:, 0]
        if len(self.task.heads) > 1 or 2 * count * 4 > problem.evals_cap:
            return
        for choice in range(count):
            same = problem.initial.copy()
            same[counts > 1, 0] = np.minimum(choice, counts - 1)[counts > 1]
            answer = self._given(observation, encoded, same).argmax(-1).cpu().numpy().astype(np.int16)
            problem.cost(np.stack([same, answer])[: problem.remaining])

    def _price_samples(self, problem: AssignProblem, observation: GOObservation, encoded: EncodedGraphs,
                       given: Decision) -> None:  # fmt: skip
        """A tenth of the budget, at most `search.samples`, on decisions sampled at a low temperature."""
        count = min(self.search.samples, problem.evals_cap // 10, problem.remaining)
        if count:
            generator = torch.Generator().manual_seed(int(problem.rng.integers(2**31)))

            def cool(log_p: Tensor) -> Tensor:
                drawn = sample(torch.log_softmax(log_p / self.search.temperature, -1).cpu(), count, generator)
                return drawn.to(log_p.device)

            previous = torch.from_numpy(given.astype(np.int64)).to(self.device)
            drawn = self.policy.decide(observation, encoded, previous, cool)
            problem.cost(drawn.cpu().numpy().astype(np.int16))

    def _given(self, observation: GOObservation, encoded: EncodedGraphs, decision: Decision) -> Tensor:
        """[N, H, K] log-probabilities given a decision."""
        log_p: Tensor = self.policy(observation, encoded, torch.from_numpy(decision.astype(np.int64)).to(self.device))
        return log_p
