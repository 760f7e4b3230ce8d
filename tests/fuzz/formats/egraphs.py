"""E-graphs: JSON of egraph-serialize, plain and packed, and what is extracted from them."""

import gzip
import random
from pathlib import Path
from typing import Any

from graphopt.rewrite.extract import main

from ..judge import Format, Wrong, json_lines, spoken
from ..mutate import Draw, damaged, damaged_bytes, gzip_bomb, json_text
from .archives import BOMB


def egraph(rng: random.Random) -> Any:
    """A small one with cycles, sharing, and classes of several nodes."""
    classes = rng.randrange(2, 8)
    nodes: dict[str, Any] = {
        f"leaf{c}": {"op": "x", "eclass": f"c{c}", "cost": rng.randrange(1, 9)} for c in range(classes)
    }
    for n in range(rng.randrange(12)):
        children = [f"leaf{rng.randrange(classes)}" for _ in range(rng.randrange(4))]
        nodes[f"n{n}"] = {
            "op": "f",
            "eclass": f"c{rng.randrange(classes)}",
            "children": children,
            "cost": rng.random() * 3,
        }
        if rng.random() < 0.1:
            nodes[f"n{n}"]["subsumed"] = True
    return {"nodes": nodes, "root_eclasses": [f"c{rng.randrange(classes)}" for _ in range(rng.randrange(1, 3))]}


def write(rng: Draw, folder: Path) -> Path:
    content = json_text(damaged(rng, egraph(rng))).encode(errors="surrogatepass")
    packed = rng.random() < 0.3
    file = folder / ("e.json.gz" if packed else "e.json")
    content = gzip.compress(content) if packed else content
    if rng.random() < 0.2:
        content = damaged_bytes(rng, content)
    if packed and rng.random() < 0.05 and not rng.sound:
        content = gzip_bomb(BOMB)
    file.write_bytes(content)
    return file


def read(file: Path) -> None:
    """All methods: bounds are bounds, the least tree has no dearer DAG bound, exact is at most greedy."""
    found = {
        line["method"]: line
        for line in json_lines(spoken(main, [str(file), "--method", "all", "--seconds", "1", "--json"], (1, 2)))
    }
    exact, greedy, tree = (found[method] for method in ("exact", "greedy-dag", "greedy-tree"))
    for line in found.values():
        cost = line["tree_cost"] if line["minimises"] == "tree" else line["dag_cost"]
        if not (cost is None or 0 <= line["bound"] <= cost):
            raise Wrong(f"the bound is none: {line}")
    if exact["dag_cost"] > min(greedy["dag_cost"], tree["dag_cost"]) * (1 + 1e-9) + 1e-12:
        raise Wrong(f"exact is dearer than greedy: {found}")


EGRAPHS = (Format("egraph", write, read),)
