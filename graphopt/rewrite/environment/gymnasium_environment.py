"""`RewriteEnvironment`: rewriting for libraries of reinforcement learning, as a gymnasium environment (extra `rl`).

problem = task.open(graph, cost, evals=10_000)
env = RewriteEnvironment(problem, proxy, settings, observation="graphs")

Several side by side: gymnasium's `SyncVectorEnv` of such environments, each with a problem of its own, or
`gymnasium.make_vec("graphopt/Rewrite-v0", num_envs=4, problem=problem, ...)`, which share one problem and its budget.
"""

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.environment.episodes import STOP, Episode, EpisodeSettings, Game, Place
from graphopt.rewrite.environment.meta_graph import DIMS, KINDS, SIZES, TOTALS
from graphopt.rewrite.program_cost import TermPrice
from graphopt.rewrite.rewrite_problem import RewriteProblem

NODE_COLUMNS = len(KINDS) + len(SIZES) + 1
COUNT_COLUMNS = len(KINDS) + len(TOTALS)


class RewriteEnvironment(gymnasium.Env[Any, np.int64]):
    """The decision process of `episodes`, whose prices the problem bills and whose best program it keeps.

    - **Actions**: `Discrete(cap)`; 0 stops. `action_masks()` and `info["action_mask"]` say which there are.
    - **Observations** `graphs`: `spaces.Graph`, the current program and its candidates as one disjoint graph. A node is
      a one-hot operator, `SIZES`, and the action whose program it belongs to; an edge the last four dimensions of a
      tensor. `counts`, for libraries that take arrays alone: [cap, ...] per action, how often each operator stands in
      its program more than in the current one, and `TOTALS`; zeros where there is no action.
    - **Reward**, `terminated`, `truncated`: of `episodes`. A budget that is spent truncates, with
      `info["out_of_budget"]`.
    - `info["price"]` is the last price asked for, `info["left_out"]` the candidates that got no slot.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 gymnasium's own

    def __init__(self, problem: RewriteProblem, proxy: TermPrice, settings: EpisodeSettings,
                 observation: Literal["graphs", "counts"]) -> None:  # fmt: skip
        self.game, self._kind = Game(problem, proxy, settings), observation
        self.action_space = spaces.Discrete(settings.cap)
        high = np.inf
        if observation == "counts":
            self.observation_space: spaces.Space[Any] = spaces.Box(
                -high, high, (settings.cap, COUNT_COLUMNS), np.float32
            )
        else:
            self.observation_space = spaces.Graph(
                spaces.Box(0.0, high, (NODE_COLUMNS,), np.float32), spaces.Box(0.0, high, (DIMS,), np.float32)
            )
        self._episode: Episode | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode = Episode(self.game, self.np_random)
        return self._seen(self._episode.place), self._info(self._episode.place)

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Raises ValueError for an action that the mask forbids."""
        episode = self._running()
        try:
            outcome = episode.step(int(action))
        except OutOfBudget:
            place = episode.place
            return self._seen(place), 0.0, False, True, {**self._info(place), "out_of_budget": True}
        place = episode.place
        return self._seen(place), outcome.reward, outcome.terminated, outcome.truncated, self._info(place)

    def action_masks(self) -> NDArray[np.bool_]:
        """[cap] which actions there are."""
        return np.arange(self.game.settings.cap) < self._running().place.actions

    def _running(self) -> Episode:
        if self._episode is None:
            raise ValueError("no episode has begun: call reset() first")
        return self._episode

    def _info(self, place: Place) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), "price": place.point.cost, "left_out": place.left_out}

    def _seen(self, place: Place) -> Any:
        graphs = place.graphs
        one_hot = np.eye(len(KINDS), dtype=np.float32)[graphs.kind]
        if self._kind == "graphs":
            nodes = np.concatenate([one_hot, graphs.sizes, graphs.graph[:, None].astype(np.float32)], 1)
            return spaces.GraphInstance(nodes, graphs.dims, graphs.edges.T)
        seen = np.zeros((self.game.settings.cap, COUNT_COLUMNS), np.float32)
        counts = np.zeros((place.actions, len(KINDS)), np.float32)
        np.add.at(counts, graphs.graph, one_hot)
        seen[: place.actions] = np.concatenate([counts - counts[STOP], place.totals], 1)
        return seen


gymnasium.register(id="graphopt/Rewrite-v0", entry_point=RewriteEnvironment)
