"""Speed of sharding: the exact price of one node's change, of a whole choice, and a sweep of message passing.

`python benchmarks/sharding.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: the median of
several repetitions, with the smallest and the largest, in CPU time of one thread. Instances: dataset=sharding_drawn.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from lines import say

from graphopt.contests.sharding.dual import Passing
from graphopt.contests.sharding.reducing import reduced
from graphopt.contests.sharding.sharding_instances import random_tables
from graphopt.core.auto_sharding.strategies import price


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, three repetitions")
    quick = parser.parse_args().quick
    for nodes in (2000,) if quick else (2000, 30_000):
        measure(nodes, 3 if quick else 7)


if __name__ == "__main__":
    main()
