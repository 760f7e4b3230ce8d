"""REGAL: a graph network steers a genetic algorithm (Paliwal et al., ICLR 2020, and the earlier text of May 2019).

One forward pass reads the graph and gives, for every op, the distributions from which BRKGA draws its first population
and its mutants (a Beta per device affinity, one for the scheduling priority) and, by config, the elite biases; then the
same BRKGA as `algo=brkga` spends the whole budget. Learning is REINFORCE, each graph being a contextual bandit: sample
actions y ~ p(y | G), run BRKGA with them, reward r = -o_a / o_s with o_s the objective of standard BRKGA under the same
budget (section 3); a learned baseline is subtracted; entropy bonus.

Our choices where the paper is silent (and see graphopt.algos.regal_policy):
- Results travel by keys drawn from the Beta of their producer's priority: the paper has no action for them.
- The samples of a graph in a step share their random numbers. With several of them the baseline is the mean reward of
  the graph's other samples, with one the value that a second network learns. Advantages are scaled to unit variance.
- o_s is the mean of `standard_runs` seeds and computed once per graph: it is only a scale where samples are compared.
- At test the most probable actions are taken.
- Actions of ops that are held out (`Graph.taught`) are drawn and act, but teach nothing; those of graphs do.

Shape legend: N ops of all graphs of a batch, S samples, A actions of an op, K keys, G graphs.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.algos.learner import Learner, answering, stored_numbers
from graphopt.algos.regal_heads import Heads, betas, elite_bias
from graphopt.algos.regal_inputs import DESCRIPTORS, MEMBERSHIPS, ORDERS, inputs
from graphopt.algos.regal_policy import Policy, REGALObservation
from graphopt.core.graph import Graph
from graphopt.encoders.encoder import Encoder
from graphopt.encoders.features import batch, graph_features
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.keys import KeyRole
from graphopt.problems.task import AssignTask
from graphopt.search.genetic.evolution import (
    F32,
    F64,
    Evolution,
    Sampler,
    beta_keys,
    evolve,
    priced_by,
    run_alone,
    uniform_keys,
)
from graphopt.utils.ranges import Count, Few, NotNegative, Positive

Actions = NDArray[np.int64]  # [N, A]


@dataclass(frozen=True, kw_only=True)
class Use:
    """Which actions act; the others keep what plain BRKGA has (Table 3)."""

    placement: bool
    scheduling: bool
    elite_bias: bool

    @property
    def flags(self) -> tuple[bool, bool, bool]:
        return self.placement, self.scheduling, self.elite_bias


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings:
    """REINFORCE."""

    evals: Count  # budget of every BRKGA run in training
    samples: Few  # actions per graph and step
    standard_runs: Few  # seeds of standard BRKGA behind o_s
    entropy: NotNegative
    value: NotNegative  # weight of the baseline network's loss
    rate: NotNegative
    graph_rate: NotNegative  # of how the graphs' actions depend on `DESCRIPTORS`, in indices
    halved_after: Positive  # steps after which rates are half of the first; then a third after as many more, and so on
    gradient_clip: NotNegative


class REGAL(Learner):
    """See the module's docstring. yaml: conf/algo/regal.yaml explains every hyper-parameter."""

    heeds_held_out = True
    network_settings = frozenset({"heads", "use"})
    training_only = ("critic.", "value.")

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int,
                 evolution: Evolution, use: Use, heads: Heads, learning: ReinforceSettings) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.evolution, self.use, self.learning = evolution, use, learning
        self.policy = Policy(encoder, heads)
        self.critic, self.value = deepcopy(encoder), nn.Linear(encoder.width, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.constant_(self.value.bias, -1.0)  # the reward of standard BRKGA
        self._standard: dict[str, float] = {}

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        """Inputs per op that REGAL adds to the encoder's: orders of the ops."""
        return len(ORDERS)

    def made_for(self) -> dict[str, Any]:
        """What its heads read; one policy serves any task and any number of devices."""
        return {"inputs": [*ORDERS, *MEMBERSHIPS, *DESCRIPTORS]}

    def configure_optimizers(self) -> Any:
        common = [self.policy.graph_mean.bias, self.policy.describe.weight]
        others = [parameter for parameter in self.parameters() if not any(parameter is one for one in common)]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": common, "lr": self.learning.graph_rate}]
        optimizer = torch.optim.Adam(groups, lr=self.learning.rate)
        decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / self.learning.halved_after))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["standard"] = dict(self._standard)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._standard = {graph: stored_numbers([price], 1)[0] for graph, price in checkpoint["standard"].items()}

    # ---- learning

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        """One REINFORCE step on a batch of graphs."""
        observation = self.observe(graphs)
        with torch.no_grad():
            action = self.policy.propose(observation, self.learning.samples)
        reward_SG = torch.tensor(self._rewards(graphs, action.op.numpy(force=True)), dtype=torch.float32)
        reward_SG = reward_SG.to(self.device)
        of_graph, of_op, entropy = self.policy.log_prob(observation, action)
        value_G = self._value(observation)
        advantage_SG = _advantages(reward_SG, value_G.detach())
        taught = torch.from_numpy(np.concatenate([graph.taught for graph in graphs])).to(self.device)
        parts = (of_op * self._acting(of_op) * taught[:, None]).split_with_sizes([graph.num_ops for graph in graphs], 1)
        score_SG = torch.stack([part.mean(1).sum(1) for part in parts], 1)
        score_SG += (of_graph * self.policy.used_by_graph(*self.use.flags)).sum(2)
        policy = -(score_SG * advantage_SG).mean()
        critic = nn.functional.mse_loss(value_G.expand_as(reward_SG), reward_SG)
        loss: Tensor = policy + self.learning.value * critic - self.learning.entropy * entropy
        losses = {"policy": policy, "value": critic, "entropy": entropy}
        self.log_dict({f"losses/{name}": value.detach() for name, value in losses.items()})
        self.log("reward", reward_SG.mean(), prog_bar=True)
        return loss

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None,
                                    gradient_clip_algorithm: Any = None) -> None:  # fmt: skip
        nn.utils.clip_grad_norm_(self.parameters(), self.learning.gradient_clip)

    def observe(self, graphs: list[Graph]) -> REGALObservation:
        """The policy's input for a batch of graphs."""
        data = batch([graph_features(graph, self.task.machine) for graph in graphs]).to(self.device)
        read = zip(*(inputs(graph, self.task) for graph in graphs), strict=True)
        order, member, whole = (torch.from_numpy(np.concatenate(part)).to(self.device) for part in read)
        return REGALObservation(data, order, member, whole)

    def _value(self, observation: REGALObservation) -> Tensor:
        """[G] expected reward, by the second network."""
        _, state_GD = self.critic(observation.data, observation.order)
        value: Tensor = self.value(state_GD).squeeze(1)
        return value

    def _acting(self, of_op: Tensor) -> Tensor:
        """[A] 1 for actions that are used."""
        used = [self.use.placement] * (of_op.shape[2] - 3) + [self.use.scheduling] * 2 + [self.use.elite_bias]
        return torch.tensor(used, device=of_op.device).float()

    def _rewards(self, graphs: list[Graph], actions: NDArray[np.int64]) -> F64:
        """[S, G] -o_a / o_s. The samples of a graph share their random numbers."""
        out, start = np.zeros((len(actions), len(graphs))), 0
        for g, graph in enumerate(graphs):
            seed = int(self._random.integers(2**31))
            rows = actions[:, start : start + graph.num_ops]
            start += graph.num_ops
            out[:, g] = [-self._outcome(graph, seed, row) / self._standard_outcome(graph) for row in rows]
        return out

    def _standard_outcome(self, graph: Graph) -> float:
        """o_s: plain BRKGA, averaged over some seeds."""
        if graph.hash not in self._standard:
            runs = [self._outcome(graph, seed, None) for seed in range(self.learning.standard_runs)]
            self._standard[graph.hash] = float(np.mean(runs))
        return self._standard[graph.hash]

    def _outcome(self, graph: Graph, seed: int, actions: Actions | None) -> float:
        """The best score of one BRKGA run by itself; without actions of plain BRKGA."""
        sampler = uniform_keys(self.task.key_count(graph)) if actions is None else self.sampler(graph, actions)
        bias = None if actions is None else self.bias(graph, actions)
        return run_alone(self.pricing(graph), sampler, self.evolution, evals=self.learning.evals, seed=seed, bias=bias)

    # ---- use

    def solve(self, problem: AssignProblem) -> None:
        if problem.open:
            with answering(problem.graph):
                actions = self.policy.propose(self.observe([problem.graph]), 0).op[0].numpy(force=True)
            sampler, bias = self.sampler(problem.graph, actions), self.bias(problem.graph, actions)
            evolve(priced_by(problem), sampler, problem.rng, self.evolution, bias=bias)

    def sampler(self, graph: Graph, actions: Actions) -> Sampler:
        """Keys from the Betas of the actions [N, A]; uniform where an action is not used."""
        layout, devices = self.task.layout(graph), self.task.machine.num_devices
        alpha, beta = np.ones(len(layout), np.float32), np.ones(len(layout), np.float32)
        if self.use.placement:
            keys = np.flatnonzero(layout.role == KeyRole.AFFINITY)
            op, device = layout.op[keys], layout.device[keys]
            alpha[keys], beta[keys] = betas(actions[op, 2 * device], actions[op, 2 * device + 1])
        if self.use.scheduling:
            keys = np.flatnonzero((layout.role == KeyRole.PRIORITY) | (layout.role == KeyRole.TRANSFER))
            op = layout.op[keys]
            alpha[keys], beta[keys] = betas(actions[op, 2 * devices], actions[op, 2 * devices + 1])
        proposal: Sampler = beta_keys(alpha, beta)
        return proposal

    def bias(self, graph: Graph, actions: Actions) -> F32 | None:
        """[K] elite bias of every gene, that of its op; None where the action is not used."""
        return elite_bias(actions[self.task.layout(graph).op, -1]) if self.use.elite_bias else None


def _advantages(reward_SG: Tensor, value_G: Tensor) -> Tensor:
    """[S, G] reward over the mean of the graph's other samples (the learned value where there is one sample), in
    standard deviations."""
    samples = len(reward_SG)
    others = (reward_SG.sum(0) - reward_SG) / (samples - 1) if samples > 1 else value_G.expand_as(reward_SG)
    advantage = reward_SG - others
    return (advantage / advantage.square().mean().sqrt().clamp(min=1e-4)).clamp(-3.0, 3.0)
