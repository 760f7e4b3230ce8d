"""The joint graph of forward and gradients that torch's partitioner is asked to split, without computing anything."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._functorch import partitioners

from graphopt.core.graph import Graph, GraphError
from graphopt.readers.pytorch.step_reader import read_step
from graphopt.readers.pytorch.trace_errors import complaint, quiet


class _Captured(BaseException):
    """Carries the graph out of the compiler; no error, so that nothing on the way handles it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph


def capture_step(module: nn.Module, inputs: Sequence[Tensor], *, name: str, family: str) -> Graph:
    """The training step of `module(*inputs)`, which returns a loss, in training mode, with Inductor's decompositions.
    Raises GraphError, in one sentence, when torch.compile cannot take it as one graph."""
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    try:
        with quiet():
            torch.compile(module.train(), backend=_backend(name, family), fullgraph=True, dynamic=False)(*inputs)
    except _Captured as captured:
        return captured.graph
    except Exception as error:
        raise GraphError(f"{name}: {complaint(error)}") from error
    finally:
        torch._dynamo.reset()  # type: ignore[no-untyped-call]
    raise GraphError(f"{name}: it has no gradient; give a module whose result is a loss that depends on its parameters")


def _backend(name: str, family: str) -> Any:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._inductor.decomposition import select_decomp_table

    def partition(gm: Any, inputs: Any, **kwargs: Any) -> Any:
        plain = partitioners.choose_saved_values_set

        def take(graph: Any, info: Any, memory_budget: float = 1) -> Any:
            forward = int(kwargs["num_fwd_outputs"])
            saved = plain(graph, info, memory_budget=1)
            raise _Captured(read_step(graph, set(info.tangents_closure), forward, saved, name=name, family=family))

        with mock.patch.object(partitioners, "choose_saved_values_set", take):
            return partitioners.min_cut_rematerialization_partition(gm, inputs, **kwargs)

    return aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, decompositions=select_decomp_table,
                        partition_fn=partition, keep_inference_input_mutations=True)  # fmt: skip
