"""Small GO learners, for its tests."""

from dataclasses import replace
from typing import Any

import torch
from fusion_graphs import GPU

from graphopt.algos.go import GO, GOSearchSettings, Tuning
from graphopt.algos.go_policy import PolicySizes
from graphopt.algos.ppo import PPOSettings
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.costs.simulator import Simulator
from graphopt.encoders.graphsage import GraphSAGE
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import AssignTask
from graphopt.tasks.fusion import Fusion
from graphopt.tasks.joint import Joint

MACHINE = Machine(name="m", devices=(GPU, GPU, GPU), link_bandwidth=20e9)
CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}
FUSION = Fusion(name="fusion", machine=MACHINE, decision="binary", numerics=None, levels=2, **CAPS)
JOINT = Joint(name="joint", machine=MACHINE, levels=5, fuse=True, **CAPS)
SIMULATOR = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1)
NETWORK = PolicySizes(attention_layers=1, attention_heads=2, segment=16, superposition=True, iterations=2,
                  recurrent=True,
                  prior={"inline": 0.8, "device": 0.9, "priority": 0.5})  # fmt: skip
LEARNING = PPOSettings(reward_weight=1.0, flip_weight=1.0, flips=64, alone=0.0, samples=4, epochs=3, clip=0.2,
                    entropy=0.01, rate=5e-3, gradient_clip=0.5)  # fmt: skip
SEARCH = GOSearchSettings(
    tuning=Tuning(steps=0, share=0.5, rate=5e-3, flips=4), samples=4, temperature=0.5, refresh=16, deltas=False
)


def go(
    task: AssignTask = FUSION, cost: CostModel = SIMULATOR, *, network: PolicySizes = NETWORK, **learning: Any
) -> GO:
    torch.manual_seed(0)
    encoder = GraphSAGE(
        name="sage", width=16, layers=2, dropout=0.0, aggregation="mean", extra_width=GO.extra_width(task)
    )
    return GO(name="go", task=task, cost=cost, encoder=encoder, seed=0, network=network,
              learning=replace(LEARNING, **learning), search=SEARCH)  # fmt: skip


def probabilities(learner: GO, graphs: list[Graph]) -> torch.Tensor:
    """[N, H, K] of the first decisions."""
    observation = learner.observe(graphs)
    with torch.no_grad():
        return learner.policy(observation, learner.policy.encode(observation), observation.default).exp()
