"""What a graph pass can carry out of fusion decisions: storing what Inductor would inline."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph as FxGraph

from graphopt.apply.compile_backend import answers_in, program_of
from graphopt.inductor.version import check_version
from graphopt.ranking.asked import asked_of

REALISED = "inductor_realize_to_strides"  # in a node's meta: its value is stored, with the strides that it has


class StoredPass(CustomGraphPass):
    """For `torch._inductor.config.post_grad_custom_post_pass`, forward and backward: stores what was decided to be
    stored, in graphs with the same inputs, at nodes of the same name and operator.

    A pass cannot inline, cut or set knobs; these take `backend="graphopt"`, which alone runs what was measured.
    """

    def __init__(self, decisions: str | Path) -> None:
        """decisions: a folder of decision files. Raises UserError."""
        check_version()
        self._stored: list[tuple[list[Any], dict[str, str]]] = []  # (inputs of a graph, node -> operator)
        for file, answer in answers_in(decisions):
            requests, graph = asked_of(answer.plan, 0).requests, program_of(answer, str(file)).gm.graph
            stored = {
                node.name: str(node.target) for node in graph.nodes if requests.get(node.name) in ("store", "cut")
            }
            self._stored.append((_inputs(graph), stored))

    def __call__(self, graph: FxGraph) -> None:
        inputs = _inputs(graph)
        stored = [wanted for given, wanted in self._stored if given == inputs]
        for node in graph.nodes:
            if any(wanted.get(node.name) == str(node.target) for wanted in stored):
                node.meta[REALISED] = True

    def uuid(self) -> str:
        """Equal for what stores the same: Inductor's caches count it."""
        return "graphopt " + sha256(json.dumps(self._stored, sort_keys=True).encode()).hexdigest()


def _inputs(graph: FxGraph) -> list[Any]:
    """Name, shape and type of each."""
    given = [(node.name, node.meta.get("val")) for node in graph.find_nodes(op="placeholder")]
    return [[name, str(tuple(getattr(v, "shape", ()))), str(getattr(v, "dtype", None))] for name, v in given]
