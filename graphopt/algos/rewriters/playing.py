"""Episodes played by a policy, and what their steps were worth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from graphopt.algos.rewriters.xrlflow_policy import XRLflowPolicy
from graphopt.rewrite.environment.episodes import Episode, step_together
from graphopt.rewrite.environment.meta_graph import MetaGraph


@dataclass(slots=True)
class Transition:
    """A step of an episode. follows: the value of the next state, 0 at an end. saved: [A] what actions save by the
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
         likeliest: bool = False, taught: bool = False) -> list[list[Transition]]:  # fmt: skip
    """Steps of several episodes to their ends, all at once. likeliest: the first one takes the likeliest actions.
    taught: notes what actions save, as far as that is known.

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
            saved = place.saved() if taught else None
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


def advantages(steps: Sequence[Transition], discount: float, trace: float) -> np.ndarray:  # type: ignore[type-arg]
    """Generalised advantage estimates of one episode (Schulman et al., 2016)."""
    found, ahead = np.zeros(len(steps)), 0.0
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        delta = step.reward + (0.0 if step.over else discount * step.follows) - step.value
        found[i] = ahead = delta + discount * trace * ahead
    return found
