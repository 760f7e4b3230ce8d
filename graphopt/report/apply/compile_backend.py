"""Fusion decisions carried out by `torch.compile`: `torch.compile(module, backend="graphopt", options={"decisions":
FOLDER})`, or the same without files, `backend=decided(...)`.

Forward, backward and inference graphs are recognised by what Inductor is given to lower (`key_of`); those that nothing
was decided about are compiled as Inductor does by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from torch.fx import GraphModule

from graphopt.core.compiler import options as options_of
from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.program_file import key_of, unpacked_program
from graphopt.hardware.apply.allocator import use_allocator
from graphopt.hardware.inductor.captured import phase_of
from graphopt.hardware.inductor.lowering import Request, Requests, carried_out, check_version, replaced
from graphopt.hardware.inductor.strided_reads import with_strided_reads_fixed
from graphopt.hardware.requests import CompilerRequest, request_of
from graphopt.report.answer import Answer

UNCACHED = {"fx_graph_cache": False, "fx_graph_remote_cache": False}  # whose keys know nothing of decisions
NOTHING = CompilerRequest({}, {})


def decided(decisions: Mapping[str, CompilerRequest], carried: set[str] | None = None) -> Callable[..., Any]:
    """A backend for `torch.compile`. decisions: by keys of programs; carried: is given the keys of those that were
    carried out. Raises UserError where this torch's Inductor is not known."""
    check_version()
    done = set() if carried is None else carried

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Any:
        """In place of `compile_fx_inner`: a request holds from the lowering of the graph until it is compiled."""
        with ExitStack() as stack:

            def lowering(gm: GraphModule, **given: Any) -> GraphLowering:
                try:
                    key = key_of(gm, phase_of(settings))
                except GraphError:  # changing shapes, or no program of tensor operators
                    key = ""
                request = decisions.get(key, NOTHING)
                done.update({key} & set(decisions))
                if request != NOTHING:
                    words = {name: Request(word) for name, word in request.requests.items()}
                    stack.enter_context(config.patch(options_of(request.knobs)))
                    stack.enter_context(carried_out(Requests(words)))
                return GraphLowering(gm, **given)

            stack.enter_context(config.patch(UNCACHED))
            stack.enter_context(replaced(inductor, "GraphLowering", lowering))
            return inductor.compile_fx_inner(gm, example_inputs, **settings)

    def graphopt(gm: GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
        patches = {**with_strided_reads_fixed(), **(options or {})}
        with functorch_config.patch(enable_autograd_cache=False):
            return inductor.compile_fx(gm, example_inputs, compile_graph, config_patches=patches)

    return graphopt


def backend(gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Any:
    """What `torch.compile(backend="graphopt")` finds. options: `decisions`, a folder of decision files, and
    `allocator`, `keep` where malloc is to keep freed memory in this process; beside Inductor's own."""
    given = dict(options or {})
    use_allocator(given.pop("allocator", "user"))
    if "decisions" not in given:
        raise UserError('backend="graphopt" takes options={"decisions": FOLDER}, a folder of decision files')
    return decided(decisions_in(given.pop("decisions")))(gm, example_inputs, given)


def decisions_in(folder: str | Path) -> dict[str, CompilerRequest]:
    """The requests of the decision files (*.npz) of a folder, by keys of their programs. Raises UserError where there
    are none, one cannot be read, or one is of a graph that was not captured for Inductor."""
    files = sorted(Path(folder).glob("*.npz"))
    if not files:
        raise UserError(f"no decision files in {folder}; `save` of an optimized module writes them")
    found = {}
    for file in files:
        answer = Answer.load(file)
        if not isinstance(answer.graph.program, bytes):
            raise UserError(f"{file} is of a graph without a program for TorchInductor; solve with cost=inductor")
        program = unpacked_program(answer.graph.program, str(file))
        found[key_of(program.gm, program.phase)] = request_of(answer.plan, 0)
    return found
