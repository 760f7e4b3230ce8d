"""TorchInductor's input: graphs after all passes, of whole steps or as `torch.compile` makes them.

Names of nodes are those that lowering and `post_grad_custom_post_pass` see.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch._inductor import config
from torch._inductor.utils import get_donated_idxs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map_only

from graphopt.core.compiler import STORED
from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.readers.pytorch.capture import tell_sources
from graphopt.graphs.readers.pytorch.fx_reader import read_fx
from graphopt.graphs.readers.pytorch.nested_tensors import arguments_of, tensors_in, with_tensors
from graphopt.graphs.readers.pytorch.program_file import FxProgram, Phase
from graphopt.graphs.readers.pytorch.program_inputs import describe, device_of, for_eager
from graphopt.graphs.readers.pytorch.trace_errors import complaint, quiet
from graphopt.hardware.inductor.lowering import check_version, output_strides, own_choices, replaced
from graphopt.hardware.inductor.strided_reads import with_strided_reads_fixed

FRESH = {"fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1}


class _CaptureEnd(Exception):
    """Ends a lowering or a run once the graph is captured."""


@dataclass
class _Spy:
    """Stands where graphs are lowered: keeps them, and gives back functions that, if it `computes`, run them as is."""

    computes: bool
    graphs: int = 0  # so many were lowered
    programs: dict[int, FxProgram] = field(default_factory=dict)  # by number of the graph, as they are run

    def compile(self, gm: GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Any:
        """In place of `compile_fx_inner`."""
        reached: list[GraphModule] = []

        def lowering(gm: GraphModule, **_: Any) -> None:
            reached.append(gm)
            raise _CaptureEnd

        try:
            with replaced(inductor, "GraphLowering", lowering):
                inductor.compile_fx_inner(gm, example_inputs, **settings)
        except Exception:
            if not reached:
                raise
        seen = reached[0] if reached else gm  # which computes nothing
        number, phase, strides = self.graphs, phase_of(settings), None
        self.graphs += 1
        donated = tuple(get_donated_idxs() or ()) if settings.get("is_backward") else ()
        # torch.compile is given the strides of compiled results: a backward graph depends on them.
        if phase == "forward":
            strides = output_strides(FxProgram(seen, (), "forward"))
            context = torch._guards.TracingContext.try_get()
            if context is not None and context.output_strides is not None:
                context.output_strides.extend(strides)

        def run(inputs: list[Any]) -> Any:
            """Runs the graph, and notes its inputs the first time."""
            if number not in self.programs:
                if not all(isinstance(given, Tensor) for given in inputs):
                    raise GraphError("a compiled graph takes numbers beside tensors; give inputs of fixed shapes")
                specs, device = tuple(map(describe, inputs)), device_of(inputs)
                self.programs[number] = FxProgram(seen, specs, phase, donated, device)
            if not self.computes:
                raise _CaptureEnd
            made = for_eager(seen)(*inputs)
            inputs.clear()
            return made if strides is None else [_laid_out(t, s) for t, s in zip(made, strides, strict=True)]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def phase_of(settings: Mapping[str, Any]) -> Phase:
    """Of a graph, by the settings that `compile_fx_inner` is called with."""
    if settings.get("is_inference"):
        return "inference"
    return "backward" if settings.get("is_backward") else "forward"


def _laid_out(value: Any, stride: tuple[int, ...] | None) -> Any:
    if not isinstance(value, Tensor) or stride is None or value.stride() == stride:
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)


@contextmanager
def _capturing(*, computes: bool) -> Iterator[_Spy]:
    check_version()
    threads = torch.get_num_threads()
    with config.patch(FRESH | with_strided_reads_fixed()), functorch_config.patch(enable_autograd_cache=False), quiet():
        try:
            yield _Spy(computes)
        except (GraphError, MemoryError):
            raise
        except Exception as error:
            raise GraphError(f"it cannot be captured: {complaint(error)}") from error
        finally:
            torch.set_num_threads(threads)


def capture_step(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> FxProgram:
    """A whole step as one graph: `fn(*inputs) -> tensors`, gradients that it takes itself and updates in place
    included. Raises GraphError."""
    with _capturing(computes=False) as spy:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(tensor) for tensor in inputs]
        with mode:  # the operators that the function calls are found without computing
            traced = make_fx(fn)(*fakes)
        with torch.no_grad(), suppress(_CaptureEnd):
            compiled: Any = inductor.compile_fx(traced, list(inputs), inner_compile=spy.compile)
            compiled(*inputs)
        if len(spy.programs) != 1:
            raise GraphError(f"the step became {spy.graphs} graphs; give a function that computes with its tensors")
        return spy.programs[0]


def capture_compiled(fn: Callable[..., Any] | nn.Module, inputs: Any) -> dict[str, FxProgram]:
    """The graphs that `torch.compile` makes of a function or module, and of its gradient where an output has one:
    `forward` and `backward`, or `inference`; after graph breaks they are numbered. It is run once on the inputs. Raises
    GraphError."""
    torch._dynamo.reset()
    with _capturing(computes=True) as spy:
        compiled = torch.compile(
            fn, backend=lambda gm, given: inductor.compile_fx(gm, given, spy.compile), dynamic=False
        )
        args, kwargs = arguments_of(inputs)
        backpropagate(compiled(*args, **kwargs))
    torch._dynamo.reset()
    if not spy.programs:
        raise GraphError("torch.compile made no graph of it; give a function or module that computes with tensors, "
                         "without nn.LSTM, nn.GRU and nn.RNN, which it leaves alone")  # fmt: skip
    named: dict[str, FxProgram] = {}
    for _, program in sorted(spy.programs.items()):
        if any(node.op == "call_function" for node in program.gm.graph.nodes):
            twins = sum(name.split(".")[0] == program.phase for name in named)
            named[f"{program.phase}.{twins}" if twins else program.phase] = program
    return named


def copied(inputs: Any) -> Any:
    """Inputs with tensors of their own, which gradients and updates in place do not leave."""
    return tree_map_only(Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), inputs)


def backpropagate(result: Any) -> None:
    """Takes the gradient of all outputs that have one, for random ones that arrive."""
    ends = [t for t in tensors_in(result) if t.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.randn_like(t) for t in ends])


def as_graph(program: FxProgram, *, name: str, family: str) -> Graph:
    """The program as a `Graph`, which holds it. Its ops are called like nodes of `program.gm`; those that Inductor may
    as well store as inline have an attribute `stored`: which it does. Raises GraphError."""
    choices = own_choices(program) if program.choices is None else program.choices
    graph = read_fx(program.gm.graph, name=name, family=family, weights=0, program=program, keep_writes=True)
    attributes = graph.attributes or ({},) * graph.num_ops
    facts = [{STORED: choices[op]} if op in choices else {} for op in graph.op_names]
    made = replace(graph, attributes=tuple({**of, **fact} for of, fact in zip(attributes, facts)))
    tell_sources(made, program.gm.graph.nodes)
    return made


Step = tuple[Callable[..., list[Tensor]], list[Tensor]]


def whole_step(fn: Callable[..., Any] | nn.Module, inputs: Any) -> Step:
    """A function and its arguments: it returns the results of `fn`, and after them the gradients of parameters and
    inputs that require them. It takes parameters, inputs, and gradients of the results. A function whose inputs require
    none is as it was. fn is run once."""
    held = dict(fn.named_parameters()) if isinstance(fn, nn.Module) else {}
    arguments = arguments_of(inputs)
    given = [*held.values(), *tensors_in(arguments)]

    def run(flat: Sequence[Tensor]) -> list[Tensor]:
        rest = iter(flat[len(held) :])
        args, kwargs = with_tensors(arguments, lambda _: next(rest))
        if isinstance(fn, nn.Module):
            return tensors_in(functional_call(fn, dict(zip(held, flat)), args, kwargs))
        return tensors_in(fn(*args, **kwargs))

    learned = [i for i, tensor in enumerate(given) if tensor.requires_grad]
    if not learned and isinstance(inputs, list | tuple) and not held and len(given) == len(inputs):
        return fn, given
    if not learned:
        return lambda *flat: run(flat), given
    seeds = [torch.randn_like(end) for end in run(given) if end.requires_grad]

    def step(*flat: Tensor) -> list[Tensor]:
        values = [t.detach().requires_grad_(i in learned) for i, t in enumerate(flat[: len(given)])]
        made = run(values)
        ends = [end for end in made if end.requires_grad]
        gradients = torch.autograd.grad(ends, [values[i] for i in learned], flat[len(given) :], allow_unused=True)
        return [*(t.detach() for t in made), *(g for g in gradients if g is not None)]

    return step, [*(t.detach() for t in given), *seeds]
