"""Orders by scores, and a policy that learns them where the best order is known."""

import numpy as np
import pytest
from search.random_storages import least_peak, random_table

from graphopt.algos.order_policy import CrossEntropy, OrderPolicy
from graphopt.core.live_storage import LiveStorage, legal, peaks
from graphopt.search.heuristics.scored_order import FEATURES, scored_order


def weights(**of: float) -> np.ndarray:
    return np.array([of.get(feature, 0.0) for feature in FEATURES])


def test_the_place_alone_gives_the_graphs_order() -> None:
    for seed in range(10):
        table = random_table(seed, 12)
        assert scored_order(table, weights(place=-1.0)).tolist() == table.ordered.tolist()


def test_every_score_gives_a_legal_order() -> None:
    rng = np.random.default_rng(0)
    for seed in range(30):
        table = random_table(seed, 12)
        assert legal(table, scored_order(table, rng.standard_normal(len(FEATURES))))


def test_what_rises_least_first_is_often_best() -> None:
    greedy = weights(rise=-5.0, made=-1.0, freed=1.0)
    tables = [random_table(seed) for seed in range(40)]
    best = [int(peaks(t, scored_order(t, greedy)[None])[0]) == least_peak(t) for t in tables]
    own = [int(peaks(t, t.ordered[None])[0]) == least_peak(t) for t in tables]
    assert sum(best) > sum(own)


class Tables:
    """A cost model that knows tables."""

    def __init__(self, tables: dict[str, LiveStorage]) -> None:
        self.tables = tables

    def storage(self, graph: str) -> LiveStorage:
        return self.tables[graph]


class Task:
    heads = ()


def test_the_policy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks of its own training graphs fall towards the least ones, which are known."""
    tables = {str(seed): random_table(seed) for seed in range(30)}
    settings = CrossEntropy(population=16, elite=4, spread=0.5, turn=4)
    policy = OrderPolicy(name="p", task=Task(), cost=Tables(tables), seed=0, members=2, samples=0, noise=0.0,
                         evolution=settings)  # type: ignore[arg-type]  # fmt: skip
    policy.weights_MF.zero_()
    monkeypatch.setattr(policy, "_finished_step", lambda: None)
    monkeypatch.setattr(policy, "log_dict", lambda values: None)

    def loss() -> float:
        least = [min(int(peaks(t, scored_order(t, w)[None])[0]) for w in policy._members()) for t in tables.values()]
        return float(np.mean([np.log(found / least_peak(t)) for found, t in zip(least, tables.values(), strict=True)]))

    before = loss()
    for _ in range(16):
        policy.training_step(list(tables), 0)  # type: ignore[arg-type]
    assert loss() < 0.5 * before
    assert policy.train_evals > 0
