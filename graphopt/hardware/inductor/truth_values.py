"""How often a processor mispredicts branches on truth values in memory.

Vectorised code of TorchInductor reads and writes truth values one by one, with a branch each. A processor predicts
where a branch goes. On values that follow no pattern it often errs, and each error takes some nanoseconds. Reading 16
values takes 9 ns where all are true, and 50 ns where they are drawn with equal chances (AMD EPYC, torch 2.13).
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._inductor.graph import GraphLowering
from torch.fx import GraphModule, Interpreter, Node

from graphopt.graphs.readers.pytorch.program_file import FxProgram
from graphopt.graphs.readers.pytorch.program_inputs import for_eager, make_inputs

_KNOWN: "WeakKeyDictionary[GraphModule, dict[str, float]]" = WeakKeyDictionary()


def missed_shares(program: FxProgram) -> dict[str, float]:
    """Node of truth values -> the share of them that is mispredicted, on drawn inputs; of each program found once.
    Empty for a GPU, and where the program cannot be run op by op. The caller's random numbers stay as they are."""
    if program.device != "cpu":
        return {}
    if program.gm not in _KNOWN:
        run = _Shares(for_eager(program.gm))
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                run.run(*make_inputs(program.inputs, 0))
        except Exception:  # any exception of an operator: then nothing is known
            run.found.clear()
        _KNOWN[program.gm] = run.found
    return _KNOWN[program.gm]


class _Shares(Interpreter):
    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.found: dict[str, float] = {}

    def run_node(self, n: Node) -> Any:
        made = super().run_node(n)
        if isinstance(made, Tensor) and made.dtype is torch.bool and made.numel() > 1:
            self.found[n.name] = missed_share(made)
        return made


def missed_share(values: Tensor) -> float:
    """By the better of two predictions: always the same, or as the last value was; or the opposite of either."""
    flat = values.reshape(-1)
    same, turns = float(flat.float().mean()), float((flat[1:] ^ flat[:-1]).float().mean())
    return min(same, 1 - same, turns, 1 - turns)


def missed_share_of(graph: GraphLowering, name: str, missed: Mapping[str, float]) -> float:
    """Of an input or a buffer of a lowered graph, by `missed_shares`; 0 where nothing is known."""
    buffer = graph.name_to_buffer.get(name)
    made_by = [name] if buffer is None else [node.name for node in (buffer.get_origin_node(), *buffer.origins) if node]
    return next((missed[node] for node in made_by if node in missed), 0.0)
