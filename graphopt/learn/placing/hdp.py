"""HDP: A Hierarchical Model for Device Placement (Mirhoseini, Goldie, Pham, Steiner, Le, Dean, ICLR 2018).

A feed-forward *grouper* draws a group for every op; a sequence-to-sequence *placer* with attention draws a device for
every group (`DeviceSequence`). Both are trained together by REINFORCE while the graph is being solved: the reward is
-sqrt(time), the baseline a moving average; every sampled placement is an evaluation.

As in the authors' code (TensorFlow 1.x, python/grappler/hierarchical_controller.py): the networks' inputs (op type,
shapes of up to 5 results of 5 dimensions, neighbours with their direction, 20 numbers; of groups counts of types, sums
of shapes, adjacency both ways), 20 groups a device and 256 at most, 64 hidden units of the grouper, Adam, the rate and
its decay. Also: clipped gradients, noise on the logits of both networks, tanh of the placer's logits, -sqrt(100) for
plans that do not fit. Ours: numbers enter as logarithms (raw dimensions saturate everything else), the width of the
placer (theirs 512), several samples in an update (theirs one per worker; the number of workers is not known), the
baseline begins at the first rewards rather than at a failure, and the scale of the reward is the default's price.

Shape legend: N ops, M groups, B samples, D devices.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.core.graph import Graph
from graphopt.core.plan import Role
from graphopt.core.utils.marks import Few, NotNegative, Width
from graphopt.learn.placing.op_groups import DeviceSequence, learning_inside, of_chosen, placed_as, rewards
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer

RESULTS, DIMENSIONS, NEIGHBOURS = 5, 5, 10  # these and all below: as in the authors' code
MOST_GROUPS, BOUND = 256, 1.0  # of the placer's logits
DECAY, DECAY_FROM, DECAY_EVERY = 0.95, 400, 50  # of the rate, in updates
BASELINE = 0.9  # share of the old one
GRADIENT = 1.0  # largest norm
NOISE, NOISE_UNTIL = 0.5, 750  # standard deviation over the logits' root mean square, in so many updates


@dataclass(frozen=True, kw_only=True)
class Controller:
    """Sizes of both networks."""

    groups_per_device: Few
    grouper: Width
    placer: Width


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """Updates."""

    samples: Few
    rate: NotNegative


class HDP(Optimizer):
    """yaml: conf/algo/hdp.yaml."""

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, controller: Controller, learning: Reinforce) -> None:
        self.name, self.controller, self.learning = name, controller, learning

    def solve(self, problem: AssignProblem) -> None:
        ops = np.flatnonzero(problem.task.mask(problem.graph)[:, problem.task.column(Role.DEVICE)])
        if len(ops) and problem.open:
            with learning_inside(problem):
                self._learn(problem, _Networks(problem, ops, self.controller))

    def _learn(self, problem: AssignProblem, networks: "_Networks") -> None:
        learning = self.learning
        optimizer = torch.optim.Adam(networks.parameters(), lr=learning.rate)
        step, baseline = 0, None
        while problem.open:
            noise = NOISE if step < NOISE_UNTIL else 0.0
            device_BN, log_p_B = networks.draw(min(learning.samples, problem.remaining), noise)
            reward_B = rewards(problem, placed_as(problem, networks.of, device_BN.numpy()))
            mean = float(reward_B.mean())
            baseline = mean if baseline is None else BASELINE * baseline + (1 - BASELINE) * mean
            optimizer.zero_grad()
            (-(reward_B - baseline) * log_p_B).mean().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(networks.parameters(), GRADIENT)
            for group in optimizer.param_groups:
                group["lr"] = learning.rate * DECAY ** (max(0, step - DECAY_FROM) // DECAY_EVERY)
            optimizer.step()
            step += 1


class _Networks(nn.Module):
    """Grouper and placer of one graph; of: [N] position of each op among those that are placed, -1 of others."""

    def __init__(self, problem: AssignProblem, ops: np.ndarray, sizes: Controller) -> None:
        super().__init__()
        devices = problem.task.machine.num_devices
        self.groups = min(MOST_GROUPS, sizes.groups_per_device * devices, len(ops))
        self.of = np.full(problem.graph.num_ops, -1)
        self.of[ops] = np.arange(len(ops))
        self.kinds, self.shapes, neighbours, self.reads = _read(problem.graph, ops)
        self.x = torch.cat([self.kinds, self.shapes, neighbours], 1)
        self.grouper = nn.Sequential(
            nn.Linear(self.x.shape[1], sizes.grouper), nn.Linear(sizes.grouper, self.groups, bias=False)
        )
        features = 2 * self.groups + self.kinds.shape[1] + self.shapes.shape[1]
        self.placer = DeviceSequence(features, devices, sizes.placer, BOUND)

    def draw(self, count: int, noise: float) -> tuple[Tensor, Tensor]:
        """(devices [B, N] of the placed ops, log-probabilities [B] of the draws)."""
        logits = self.grouper(self.x).expand(count, -1, -1)
        size = logits.detach().square().mean().sqrt() * noise
        log_p = torch.log_softmax(logits + size * torch.randn_like(logits), -1)
        group_BN = torch.multinomial(log_p.exp().flatten(0, 1), 1).view(count, -1)
        device_BM, log_p_BMD = self.placer(self._embedded(group_BN), noise=noise)
        log_p_B = of_chosen(log_p, group_BN).sum(1) + of_chosen(log_p_BMD, device_BM).sum(1)
        return device_BM.gather(1, group_BN), log_p_B

    def _embedded(self, group_BN: Tensor) -> Tensor:
        """[B, M, F] adjacency in both directions, counts of types, sums of shapes, over the largest of a group."""
        member_BNM = nn.functional.one_hot(group_BN, self.groups).float()
        source, target = self.reads
        joined_BMM = torch.einsum("bem,bek->bmk", member_BNM[:, source], member_BNM[:, target])
        known = torch.cat([self.kinds, self.shapes], 1)
        own_BMF = torch.einsum("bnm,nf->bmf", member_BNM, known)
        together = torch.cat([joined_BMM, joined_BMM.transpose(1, 2), own_BMF], 2)
        return together / (together.amax(2, keepdim=True) + 1.0)


def _read(graph: Graph, ops: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """([N, kinds] one-hot, [N, 25] logarithms of dimensions, [N, 20] positions and directions of neighbours, [2, E]
    who is read by whom), of placed ops."""
    place = np.full(graph.num_ops, -1)
    place[ops] = np.arange(len(ops))
    used, kind = np.unique(graph.kind[ops], return_inverse=True)
    shapes = np.zeros((len(ops), RESULTS, DIMENSIONS), np.float32)
    for row, op in enumerate(ops):
        for result, tensor in enumerate(graph.results(int(op))[:RESULTS]):
            shape = graph.tensor_shape(tensor)[:DIMENSIONS]
            shapes[row, result, : len(shape)] = np.log1p(shape)
    source, target, _ = graph.edges
    kept = (place[source] >= 0) & (place[target] >= 0)
    edges = np.stack([place[source[kept]], place[target[kept]]]).astype(np.int64)
    kinds = nn.functional.one_hot(torch.from_numpy(kind.reshape(-1)), len(used)).float()
    known = torch.from_numpy(shapes.reshape(len(ops), -1))
    return kinds, known, _neighbours(edges, len(ops)), torch.from_numpy(edges)


def _neighbours(edges: np.ndarray, ops: int) -> Tensor:
    """[N, 2 x NEIGHBOURS] of the first: place in the order (0 to 1), and direction. 1 reads from it, -1 makes for
    it."""
    found, count = np.zeros((ops, NEIGHBOURS, 2), np.float32), np.zeros(ops, np.int64)
    for source, target in edges.T:
        for here, there, way in ((source, target, 1.0), (target, source, -1.0)):
            if count[here] < NEIGHBOURS:
                found[here, count[here]] = (1 + there) / ops, way
                count[here] += 1
    return torch.from_numpy(found.reshape(ops, -1))
