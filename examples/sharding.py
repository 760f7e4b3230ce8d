"""Sharding: a strategy for every node, by the cost of nodes and edges, within memory.

The problems are random ones; those of the public contest are read with `settings=["dataset.path=FOLDER"]`.
"""

from graphopt import compare

random = ["dataset.source=random", "dataset.random.nodes=50"]
results = compare("sharding", task="sharding", algos=["default", "local"], budget=50, settings=random)
for row in results.rows:
    print(row["graph"], row["algo"], f"{row['initial']:g} -> {row['judged']:g}")
