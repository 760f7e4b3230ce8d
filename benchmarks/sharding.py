"""Speed of sharding: the exact price of one node's change, of a whole choice, and a sweep of message passing.

`python benchmarks/sharding.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: the median of
several repetitions, with the smallest and the largest, in CPU time of one thread. Instances: random ones.
`--contest FOLDER` scores the search instead: the cost of the contest's best team over ours, of each instance below the
folder that its known.json names, within the contest's seconds, CPU seconds of one thread; `--share` of them.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from lines import say

from graphopt.contests.sharding.dual import Passing
from graphopt.contests.sharding.reducing import reduced
from graphopt.contests.sharding.sharding_instances import random_tables
from graphopt.contests.sharding.sharding_search import LEFT, PrimalSearch
from graphopt.contests.sharding.sharding_task import cheapest
from graphopt.core.auto_sharding.strategies import StrategyTables, price
from graphopt.core.utils import registry
from graphopt.graphs.readers.formats.iopddl import read_iopddl


def seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measure(nodes: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    tables = random_tables(rng, nodes, 8, 0.0, 0.0)
    choice = np.zeros(nodes, np.int64)
    model = reduced(tables)
    passing = Passing(model)
    calls: dict[str, Callable[[], object]] = {
        "full": lambda: price(tables, choice),
        "sweep": lambda: passing.sweep(model.unary, forward=True),
    }
    for call in calls.values():
        call()  # compiled and warm
    taken = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    say(f"strategy_full_price_ns_per_node/{nodes}", [1e9 * t["full"] / nodes for t in taken], "ns")
    say(f"trws_sweep_ns_per_entry/{nodes}", [1e9 * t["sweep"] / max(1, len(model.table)) for t in taken], "ns")


def found(tables: StrategyTables, seconds: float, seed: int) -> float:
    """The cost that the search comes to in CPU seconds of one thread."""
    start, unpriced = time.process_time(), registry.option("algo", "sharding_search")["unpriced"]
    rng = np.random.default_rng(seed)
    search = PrimalSearch(tables, unpriced, rng, lambda: (time.process_time() - start) / (LEFT * seconds))
    search.start(cheapest(tables))
    search.run(1, lambda: None)
    cost, over = price(tables, search.best)
    assert over == 0
    return float(cost)


def contest(folder: Path, share: float) -> None:
    known = json.loads((folder / "known.json").read_text())
    for letter, told in sorted(known.items(), key=lambda item: item[1]["seconds"]):
        tables = read_iopddl(folder / f"iopddl-{letter}.json.gz").program
        cost = found(tables, share * told["seconds"], 0)
        details = {"cost": cost, "seconds": share * told["seconds"]}
        say(f"sharding_score/{letter}", [told["best_team"] / cost], "ratio", details)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, three repetitions")
    parser.add_argument("--contest", type=Path, metavar="FOLDER", help="score the search on the contest's instances")
    parser.add_argument("--share", type=float, default=1.0, help="of the contest's seconds (1)")
    words = parser.parse_args()
    if words.contest:
        return contest(words.contest, words.share)
    quick = words.quick
    for nodes in (2000,) if quick else (2000, 30_000):
        measure(nodes, 3 if quick else 7)


if __name__ == "__main__":
    main()
