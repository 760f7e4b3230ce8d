"""X-RLflow: Graph Reinforcement Learning for Neural Network Subgraphs Transformation (He et al., MLSys 2023).

A policy over rewrites, rewarded by the costs of whole programs. The decision process (section 3.2) is
`rewrite.environment.episodes`; the network (section 3.3; layers and widths of the authors' code) turns tensors into
nodes, with graph attention, a sum over each graph and a score per candidate; learning is proximal policy optimisation
(section 3.4) with the constants of the authors' code.

The paper, its code                  | `xrlflow_paper`        | `xrlflow`
one policy per model                 | the same               | the same (`search.adapt`), or one for all graphs
head: all slots at once, tied to 500 | the same               | `head: each`: one network for all candidates
a node reads tensors in (code: out)  | those that come in     | those that come in
nodes: operator, dimensions / 4096   | the same               | also sizes, activation; logarithms (`sizes`)
graphs: nothing but their nodes      | the same               | also prices, additive ones as well (`totals`)
untrained, it knows nothing          | the same               | savings by the additive model, times `prior`
between prices: +0.1                 | the same               | an additive price (`episode.between`)
actions: single rewrites             | the same               | also a rule at all its places (`episode.waves`)
over 500 candidates: an error        | 499 are drawn          | 499 are drawn
under twice the current ops          | the task's `growth`    | the task's `growth`
order of slots: by rule, then match  | the order of matching  | the order of matching
episodes begin from the original     | the same               | from the cheapest programs (`search.starts`)
inference samples, no price between  | the same (`sampled`)   | short; one of a round takes likeliest actions
the answer is the last program       | the cheapest of these  | the cheapest priced
the last advantage differs           | ends are alike         | a state where the horizon cuts has its value
-                                    | -                      | `search.opening`: additive searches come first
-                                    | -                      | `learning.imitation`: by savings of actions
a program is priced at each visit    | once                   | once

Shape legend: M nodes and E edges of all programs, B states, G graphs of all states, A actions at most, D width.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.core.errors import ConfigError
from graphopt.core.graph import F64, Graph
from graphopt.core.machine import Machine
from graphopt.core.utils.marks import Count, Few, NotNegative, Positive, Share, Whole, Width
from graphopt.learn.encoders.convolutions import ConvolutionEncoder
from graphopt.learn.encoders.encoder import Edges, Encoder
from graphopt.learn.encoders.features import EDGE_WIDTH
from graphopt.learn.learner import Learner, inference
from graphopt.problems.cost_model import CostModel
from graphopt.rewrite.environment.episodes import STOP, Episode, EpisodeSettings, Game, step_together
from graphopt.rewrite.environment.meta_graph import DIMS, KINDS, SIZES, TOTALS, MetaGraph
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.terms import renewed
from graphopt.rewrite.program_cost import Flops
from graphopt.rewrite.rewrite_problem import Point, RewriteProblem, Rewriter, Rewriting, cheapest_by

LARGEST_LOGIT = 30.0  # of attention: exponentials stay finite
NEVER = -1e10  # logit of a slot without a candidate
LARGEST_DIM = 4096.0  # the paper's scale of dimensions
PER_CENT = 100.0
CLIP, DISCOUNT, TRACE, GRADIENT_CLIP = 0.2, 0.99, 0.95, 0.5  # of PPO, by the paper's code; TRACE: lambda of advantages
FREE_UPDATES = 10  # after so many updates, one ends early where the divergence is larger than its bound
OPENING_EVALS = 20_000  # of each additive search that opens a solve, by its own model, not billed
PATIENCE = 5  # rounds of episodes without a new program, after which a solve ends
MOST_TERMS = 1_000_000  # of a store that training fills; then it begins a new one
UNLIMITED = 10**12


# ---- the network


@dataclass(frozen=True, kw_only=True)
class NetworkSizes:
    """layers: of attention; candidates are drawn as far as so many hops reach. graph: width of a graph's state. sizes:
    whether nodes know their size and activation, and dimensions are logarithms, so that small and large programs look
    alike (the paper: no). prior: how many nats a candidate's score is raised by each per cent of the additive price
    that it saves; it is learned on (the paper: 0)."""

    width: Width
    layers: Width
    graph: Width
    head: Literal["each", "flat"]
    sizes: bool
    prior: NotNegative


@dataclass(frozen=True, slots=True, eq=False)
class ProgramStates:
    """Several `MetaGraph`s as tensors."""

    kind: Tensor  # [M]
    sizes: Tensor  # [M, S]
    edges: Tensor  # [2, E]
    dims: Tensor  # [E, 4]
    graph: Tensor  # [M]
    hidden: Tensor  # [2, H] graph, node
    totals: Tensor  # [G, T]
    current: Tensor  # [G] the current program of each graph's state
    first: Tensor  # [B] these programs
    slot: Tensor  # [G] action that leads there


def states_of(several: Sequence[MetaGraph], like: Tensor) -> ProgramStates:
    """One after another. like: a tensor of the device and the precision."""
    graphs = [0, *accumulate(len(one) for one in several)]
    nodes = [0, *accumulate(len(one.kind) for one in several)]

    def tensor(parts: Sequence[np.ndarray], axis: int = 0) -> Tensor:  # type: ignore[type-arg]
        made = torch.from_numpy(np.concatenate(parts, axis)).to(like.device)
        return made.to(like.dtype) if made.is_floating_point() else made

    counts = [len(one) for one in several]
    return ProgramStates(
        tensor([one.kind for one in several]), tensor([one.sizes for one in several]),
        tensor([one.edges + first for one, first in zip(several, nodes)], 1), tensor([one.dims for one in several]),
        tensor([one.graph + first for one, first in zip(several, graphs)]),
        tensor([one.hidden + np.array([[g], [n]]) for one, g, n in zip(several, graphs, nodes)], 1),
        tensor([one.totals for one in several]), tensor([np.repeat(graphs[:-1], counts)]),
        tensor([np.array(graphs[:-1])]), tensor([np.arange(count) for count in counts]),
    )  # fmt: skip


class GraphAttention(nn.Module):
    """One head over incoming messages and the node itself: h'_i = sum_j softmax_j(a [W h_j, W h_i]) W h_j, as in the
    code. Plain sums over edges take half the time of torch_geometric's `GATConv` on a CPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.logit = nn.Linear(width, width), nn.Linear(width, 2, bias=False)

    def forward(self, h_MD: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h_MD = self.own(h_MD)
        sent_M, received_M = self.logit(h_MD).unbind(1)
        edge_E = (sent_M[source] + received_M[target]).clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
        self_M = (sent_M + received_M).clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
        summed = (self_M[:, None] * h_MD).index_add(0, target, edge_E[:, None] * h_MD[source])
        out: Tensor = summed / self_M.index_add(0, target, edge_E)[:, None]
        return out


class ProgramNetwork(nn.Module):
    """(sums [G, D] over the nodes of each graph, nodes [G] that it has). encoder: its layers stand in for attention.
    They, too, read along the edges alone, so that candidates may be drawn in part."""

    def __init__(self, network: NetworkSizes, encoder: ConvolutionEncoder | None) -> None:
        super().__init__()
        self.sizes, self.own = network.sizes, encoder is None
        self.width = encoder.width if encoder else network.width
        self.node = nn.Linear(len(KINDS) + DIMS + len(SIZES) * network.sizes, self.width)
        own = (GraphAttention(self.width) for _ in range(network.layers))
        self.attention = encoder.hops if encoder else nn.ModuleList(own)

    def forward(self, states: ProgramStates) -> tuple[Tensor, Tensor]:
        kind_MK = nn.functional.one_hot(states.kind, len(KINDS)).to(states.dims.dtype)
        dims = torch.log2(1 + states.dims) / 12 if self.sizes else states.dims / LARGEST_DIM
        read_M4 = dims.new_zeros(len(kind_MK), DIMS).index_add(0, states.edges[1], dims)
        known = [kind_MK, read_M4, states.sizes / 12] if self.sizes else [kind_MK, read_M4]
        h_MD = self.node(torch.cat(known, 1))
        edges = () if self.own else _both_ways(states.edges, dims, len(h_MD))
        for layer in self.attention:
            h_MD = nn.functional.leaky_relu(layer(h_MD, states.edges)) if self.own else layer(h_MD, *edges)
        ones_M1 = h_MD.new_ones(len(h_MD), 1)
        sums = self._summed(torch.cat([h_MD, ones_M1], 1), states)
        return sums[:, :-1], sums[:, -1:]

    def _summed(self, h_MD: Tensor, states: ProgramStates) -> Tensor:
        """A candidate has the nodes that it draws, and those of the current program that it does not hide."""
        graphs = len(states.totals)
        own = h_MD.new_zeros(graphs, h_MD.shape[1]).index_add(0, states.graph, h_MD)
        hidden = torch.zeros_like(own).index_add(0, states.hidden[0], h_MD[states.hidden[1]])
        shares = (states.slot > 0).to(h_MD.dtype)[:, None]
        summed: Tensor = own + shares * own[states.current] - hidden
        return summed


def _both_ways(edges: Tensor, dims_E4: Tensor, nodes: int) -> tuple[Edges, Edges]:
    """As layers of encoders read them; backwards there are none."""
    order = edges[1].argsort(stable=True)
    index, known = edges[:, order], nn.functional.pad(dims_E4[order], (0, EDGE_WIDTH - DIMS))
    return Edges.of(index, known, nodes), Edges.of(index[:, :0], known[:0], nodes)


class XRLflowPolicy(nn.Module):
    """Log-probabilities [B, A] of actions, and values [B]. totals: whether graphs know `TOTALS`."""

    def __init__(self, network: NetworkSizes, cap: int, totals: bool = True,
                 encoder: ConvolutionEncoder | None = None) -> None:  # fmt: skip
        super().__init__()
        self.cap, self.head, self.totals, width = cap, network.head, totals, network.graph
        self.programs = ProgramNetwork(network, encoder)
        self.prior = nn.Parameter(torch.tensor(float(network.prior)))
        if network.head == "flat":
            self.graph = nn.Linear(self.programs.width + len(TOTALS), width)
            self.policy, self.value = _mlp(cap * width, cap, 0.01), _mlp(cap * width, 1, 0.01)
        else:
            self.graph = nn.Linear(self.programs.width, width)
            self.change = nn.Linear(self.programs.width, width)
            known = 2 * width + 2 * len(TOTALS)
            self.policy, self.value = _mlp(known, 1, 2**0.5), _mlp(known, 1, 2**0.5)

    def forward(self, several: Sequence[MetaGraph]) -> tuple[Tensor, Tensor]:
        states = states_of(several, self.prior)
        if not self.totals:
            states = replace(states, totals=torch.zeros_like(states.totals))
        sums_GD, nodes_G1 = self.programs(states)
        most = self.cap if self.head == "flat" else int(states.slot.max()) + 1
        state_G = torch.bucketize(states.current, states.first)
        score, value_B = (self._flat if self.head == "flat" else self._each)(states, sums_GD, nodes_G1, state_G)
        gain_G = states.totals[:, 0]
        score = score + self.prior * PER_CENT * (gain_G - gain_G[states.current])
        logits_BA = score.new_full((len(several), most), NEVER)
        logits_BA = logits_BA.index_put((state_G, states.slot), score)
        return torch.log_softmax(logits_BA, 1), value_B

    def _each(self, states: ProgramStates, sums_GD: Tensor, nodes_G1: Tensor, state_G: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [G] of how candidates differ, values [B] of the current program and of candidates on average."""
        whole_GD = torch.tanh(self.graph(sums_GD / nodes_G1.clamp(min=1)))[states.current]
        change_GD = torch.tanh(self.change(sums_GD - sums_GD[states.current]))
        known = torch.cat([whole_GD, change_GD, states.totals, states.totals - states.totals[states.current]], 1)
        count = known.new_zeros(len(states.first)).index_add(0, state_G, torch.ones_like(known[:, 0]))
        mean = known.new_zeros(len(count), known.shape[1]).index_add(0, state_G, known)
        return self.policy(known)[:, 0], self.value(mean / count[:, None])[:, 0]

    def _flat(self, states: ProgramStates, sums_GD: Tensor, nodes_G1: Tensor, state_G: Tensor) -> tuple[Tensor, Tensor]:
        """The released head: states of all graphs in their slots, zeros where there is none."""
        known = self.graph(torch.cat([sums_GD, states.totals], 1))
        slots = known.new_zeros(len(states.first), self.cap, known.shape[1])
        slots = slots.index_put((state_G, states.slot), known).flatten(1)
        return self.policy(slots)[state_G, states.slot], self.value(slots)[:, 0]


def _mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """[256, 64] tanh. gain: of the orthogonal weights of hidden layers (the code's: .01, as of the last one)."""
    layers = [nn.Linear(inputs, 256), nn.Linear(256, 64), nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (gain, gain, 0.01)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


# ---- episodes played by a policy


@dataclass(slots=True)
class Transition:
    """A step of an episode. follows: the value of the next state, 0 at an end. saved: [A] savings of actions by the
    cost model itself, per cent of the original's price; None where nothing teaches it."""

    graphs: MetaGraph
    action: int
    log_prob: float
    value: float
    reward: float = 0.0
    over: bool = False
    follows: float = 0.0
    saved: NDArray[np.float32] | None = None


def play(policy: XRLflowPolicy, episodes: Sequence[Episode], rng: np.random.Generator, *, temperature: float = 1.0,
         likeliest: bool = False, savings: bool = False) -> list[list[Transition]]:  # fmt: skip
    """Steps of several episodes to their ends, all at once. likeliest: the first one takes the likeliest actions.
    savings: notes the savings of actions, as far as known.

    Raises OutOfBudget when a price is needed and the budget is spent.
    """
    played: list[list[Transition]] = [[] for _ in episodes]
    running = list(range(len(episodes)))
    while running:
        going = [episodes[i] for i in running]
        sharp = [temperature * (i > 0 or not likeliest) for i in running]
        chosen, log_prob, value = drawn(policy, [one.place.graphs for one in going], rng, sharp)
        for at, i in enumerate(running):
            if played[i]:
                played[i][-1].follows = value[at]
            place = going[at].place
            saved = place.saved() if savings else None
            played[i].append(Transition(place.graphs, chosen[at], log_prob[at], value[at], saved=saved))
        outcomes = step_together(going, chosen)
        for i, outcome in zip(running, outcomes):
            played[i][-1].reward, played[i][-1].over = outcome.reward, outcome.terminated
        cut = [i for i, outcome in zip(running, outcomes) if outcome.truncated]
        if cut:
            _, value_B = policy([episodes[i].place.graphs for i in cut])
            for i, value_of_rest in zip(cut, value_B.tolist()):
                played[i][-1].follows = value_of_rest
        running = [i for i in running if not episodes[i].over]
    return played


def drawn(policy: XRLflowPolicy, graphs: Sequence[MetaGraph], rng: np.random.Generator,
          temperatures: Sequence[float]) -> tuple[list[int], list[float], list[float]]:  # fmt: skip
    """Actions, their log-probabilities by the policy itself, and values. A temperature of 0: the likeliest action."""
    log_BA, value_B = policy(graphs)
    chosen = list[int]()
    for log_A, temperature in zip(log_BA.double(), temperatures):
        share = torch.softmax(log_A / max(temperature, 1e-6), 0).numpy(force=True)
        chosen.append(int(rng.choice(len(share), p=share / share.sum())))
    return chosen, [float(log_BA[i, action]) for i, action in enumerate(chosen)], value_B.tolist()


def advantages(steps: Sequence[Transition], discount: float, trace: float) -> F64:
    """Generalised advantage estimates of one episode (Schulman et al., 2016)."""
    found, ahead = np.zeros(len(steps)), 0.0
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        delta = step.reward + (0.0 if step.over else discount * step.follows) - step.value
        found[i] = ahead = delta + discount * trace * ahead
    return found


# ---- the learner


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Of PPO; conf/algo/xrlflow.yaml explains them."""

    episodes: Few
    epochs: Few
    minibatch: Few
    value: NotNegative
    entropy: NotNegative
    rate: NotNegative
    divergence: NotNegative
    imitation: NotNegative
    imitation_temperature: Positive
    descents: Whole


@dataclass(frozen=True, kw_only=True)
class XRLflowSearch:
    """How `solve` spends a budget. adapt: learn from its own episodes. opening: the share of the budget that prices the
    programs of the additive searches. starts: of the cheapest programs that were priced, so many are where episodes
    begin (0: the original alone). episodes: per round. horizon, measure_every: as those of `episode`, for these.
    temperature: of samples."""

    adapt: bool
    opening: Share
    starts: Whole
    episodes: Few
    horizon: Count
    measure_every: Count
    temperature: Positive


class XRLflow(Learner):
    """yaml: conf/algo/xrlflow.yaml."""

    accepts = (Rewriting,)
    network_settings = frozenset(
        {"network", "additive", "totals", "encoded"}
    )  # a candidate's saving is among its inputs

    def __init__(self, *, name: str, machine: Machine, task: Rewriting, cost: CostModel, encoder: Encoder, seed: int,
                 openings: Mapping[str, Rewriter], additive: Literal["cost", "roofline"], episode: EpisodeSettings,
                 network: NetworkSizes, learning: Constants, search: XRLflowSearch, totals: bool, sampled: bool,
                 encoded: bool) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        if encoded and not isinstance(encoder, ConvolutionEncoder):
            raise ConfigError(f"algo.encoded=true takes encoder=gat, graphsage, gin or pyg, not {encoder.name}")
        layers = encoder if encoded and isinstance(encoder, ConvolutionEncoder) else None
        self.policy = XRLflowPolicy(network, episode.cap, totals, layers)
        self.openings, self.episode = list(openings.values()), episode
        self.learning, self.search, self.additive, self.sampled = learning, search, additive, sampled
        self.proxy = Flops(name="flops", machine=machine)
        self.automatic_optimization = False
        self._games: dict[str, Game] = {}

    def made_for(self) -> dict[str, Any]:
        return {"inputs": [list(KINDS), list(SIZES), list(TOTALS)]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.policy.parameters(), lr=self.learning.rate, eps=1e-5)

    def game(self, problem: RewriteProblem, episode: EpisodeSettings) -> Game:
        """The decision process of a problem. Candidates are drawn as far as the network sees."""
        own = problem.term_price if self.additive == "cost" else None
        proxy = own or self.proxy.term_price(problem.terms)
        return Game(problem, proxy, episode, len(self.policy.programs.attention))

    # ---- learning

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        """One update: episodes on every graph, then some epochs of PPO."""
        games = [self._training_game(graph) for graph in graphs]
        before = sum(game.problem.evals for game in games)
        for game in games:
            if not game.problem.evals:
                self._open(game, self.search.starts)
                game.descend(game.problem.start(), self.learning.descents)
        each = max(1, self.learning.episodes // len(games))
        with inference(graphs[0]):
            episodes = [Episode(game, self._random, start) for game in games for start in self._starts(game, each)]
            played = play(self.policy, episodes, self._random, savings=self.learning.imitation > 0)
        self._count(sum(game.problem.evals for game in games) - before)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        losses = self.improve(self.policy, optimizer, played, self.train_steps, self._random)
        earned = [sum(step.reward for step in steps) for steps in played]
        length = float(np.mean([len(steps) for steps in played]))
        self.log_dict({"reward": float(np.mean(earned)), "length": length, **losses})

    def _training_game(self, graph: Graph) -> Game:
        game = self._games.get(graph.hash)
        if game is None or len(game.problem.terms) > MOST_TERMS:
            own = graph_of(renewed(self.task.initial(graph)), name=graph.name, family=graph.family)
            self._games[graph.hash] = game = self.game(self.task.open(own, self.cost, evals=UNLIMITED), self.episode)
        return game

    def _open(self, game: Game, count: int) -> None:
        """Prices so many programs: each additive search's cheapest; descents by sweeps, of which those searches know
        nothing, from these and the original, the cheapest first; further programs of the searches. The ends of each
        search and descent stay to the end, even if cheaper programs are found later."""
        if not count:
            return
        problem, before = game.problem, game.problem.evals
        several = [cheapest_by(one, self.proxy, problem, OPENING_EVALS, count) for one in self.openings]
        others = sorted((one for found in several for one in found[1:]), key=lambda one: one.cost)
        ends = game.admit([found[0].state for found in several if found][:count])
        for start in sorted([problem.start(), *ends], key=lambda point: point.cost):
            ends.append(game.descend(start, count - (problem.evals - before)))
        game.admit([one.state for one in others][: count - (problem.evals - before)])
        if problem.finalists is not None:
            for end in ends:
                if end.rules:
                    problem.finalists.pin(end.cost, problem.digest(end), (end.outputs, end.rules))

    def _starts(self, game: Game, episodes: int) -> list[Point]:
        """Where so many episodes begin: the original and the cheapest programs in turn."""
        points = [game.problem.start(), *game.cheapest(self.search.starts)]
        return [points[i % len(points)] for i in range(episodes)]

    def improve(self, policy: XRLflowPolicy, optimizer: Any, played: Sequence[Sequence[Transition]], updates: int,
                rng: np.random.Generator) -> dict[str, float]:  # fmt: skip
        """Some epochs of PPO on played episodes; means of values to log. updates: how many there were before."""
        learning = self.learning
        steps = [step for steps in played for step in steps]
        advantage = np.concatenate([advantages(one, DISCOUNT, TRACE) for one in played])
        goal = torch.tensor(advantage + [step.value for step in steps], dtype=torch.float32)
        several = list[dict[str, float]]()
        for _ in range(learning.epochs):
            order = rng.permutation(len(steps))
            for start in range(0, len(steps), learning.minibatch):
                some = order[start : start + learning.minibatch]
                rows = [steps[i] for i in some]
                loss, parts = self._loss(policy, rows, advantage[some], goal[torch.from_numpy(some)])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(policy.parameters(), GRADIENT_CLIP)
                optimizer.step()
                several.append(parts)
            if updates >= FREE_UPDATES and several[-1]["losses/divergence"] > learning.divergence:
                break
        return {name: float(np.mean([one[name] for one in several])) for name in several[0]} if several else {}

    def _loss(self, policy: XRLflowPolicy, steps: Sequence[Transition], advantage: F64,
              goal: Tensor) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
        learning = self.learning
        log_BA, value_B = policy([step.graphs for step in steps])
        device = log_BA.device
        action = torch.tensor([step.action for step in steps], device=device)
        before = torch.tensor([step.log_prob for step in steps], device=device)
        spread = advantage.std() if len(advantage) > 1 else 1.0
        scaled = torch.tensor((advantage - advantage.mean()) / (spread + 1e-8), dtype=torch.float32, device=device)
        log_B = log_BA.gather(1, action[:, None])[:, 0]
        ratio = (log_B - before).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        policy_loss = -torch.minimum(ratio * scaled, clipped * scaled).mean()
        value_loss = 0.5 * (value_B - goal.to(device)).square().mean()
        entropy = -(log_BA.exp() * log_BA.clamp(min=-50)).sum(1).mean()
        known = [(step.saved, log_A) for step, log_A in zip(steps, log_BA) if step.saved is not None]
        far = [_divergence(saved, log_A, learning.imitation_temperature) for saved, log_A in known]
        imitation = torch.stack(far).mean() if far else log_BA.new_zeros(())
        parts = {"policy": policy_loss, "value": value_loss, "entropy": entropy, "divergence": (before - log_B).mean(),
                 "imitation": imitation}  # fmt: skip
        loss = policy_loss + learning.value * value_loss - learning.entropy * entropy + learning.imitation * imitation
        return loss, {f"losses/{name}": part.item() for name, part in parts.items()}

    # ---- solving

    def solve(self, problem: RewriteProblem) -> None:
        """Episodes until the budget is spent, or nothing new is found. With a budget of 0 the policy's own choices."""
        search, rng = self.search, problem.rng
        game = self.game(problem, replace(self.episode, horizon=search.horizon, measure_every=search.measure_every))
        if not problem.evals_cap:
            return self._commit(game)
        self._open(game, round(search.opening * problem.evals_cap))
        policy = copy.deepcopy(self.policy)
        optimizer = torch.optim.Adam(policy.parameters(), lr=self.learning.rate, eps=1e-5)
        idle = updates = 0
        while problem.open and idle < PATIENCE:
            before = problem.distinct
            with inference(problem.graph):
                starts = game.cheapest(search.starts) or [problem.start()]
                episodes = [Episode(game, rng, starts[i % len(starts)]) for i in range(search.episodes)]
                played = play(policy, episodes, rng, temperature=search.temperature, likeliest=not self.sampled)
            idle = idle + 1 if problem.distinct == before else 0
            if search.adapt:
                self.improve(policy, optimizer, played, updates, rng)
                updates += 1

    def _commit(self, game: Game) -> None:
        """The likeliest steps, or a sample of them; nothing is priced."""
        rng, temperature = game.problem.rng, self.search.temperature * self.sampled
        place = game.start(rng)
        with inference(game.problem.graph):
            for _ in range(self.episode.horizon):
                action = drawn(self.policy, [place.graphs], rng, [temperature])[0][0] if place.steps else STOP
                if action == STOP:
                    break
                point = game.problem.take(place.point, place.steps[action - 1])
                place = game.place(point._replace(cost=place.point.cost), rng)
        game.problem.take_best((place.point.outputs, place.point.rules))


class XRLflowPaper(XRLflow):
    """As published, by its settings (conf/algo/xrlflow_paper.yaml): a class of its own, so that checkpoints of
    `xrlflow` are no starting point for it."""


def _divergence(saved: np.ndarray, log_A: Tensor, temperature: float) -> Tensor:  # type: ignore[type-arg]
    """Of a policy from the savings of actions, in nats. Actions of unknown saving are pooled to one, which saves as
    much as STOP, so that the policy's share of them stays; where that is unknown too, they are left out."""
    known = torch.from_numpy(np.isfinite(saved)).to(log_A.device)
    scores, own_A = torch.from_numpy(saved).to(log_A)[known], log_A[: len(saved)]
    own = own_A[known]
    if np.isfinite(saved[STOP]) and not bool(known.all()):
        scores = torch.cat([scores, scores[:1]])
        own = torch.cat([own, own_A[~known].logsumexp(0, keepdim=True)])
    wanted = torch.log_softmax(scores / temperature, 0)
    return (wanted.exp() * (wanted - torch.log_softmax(own, 0))).sum()
