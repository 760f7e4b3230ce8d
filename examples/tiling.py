"""Tiling: which ops share a subgraph, with what tiles, and what stays in fast memory.

The problems are random ones; those of the public contest are read with `settings=["dataset.path=FOLDER"]`.
"""

from graphopt import compare

random = ["dataset.source=random", "dataset.random.test=[8,14]"]
results = compare("tiling", task="tiling", algos=["tile_merge", "tile_walk"], budget=50, settings=random)
for row in results.rows:
    print(row["graph"], row["algo"], f"{row['initial']:g} -> {row['judged']:g}")
