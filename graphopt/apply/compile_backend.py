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

from graphopt.answer import Answer
from graphopt.core.graph import GraphError
from graphopt.core.knobs import options as options_of
from graphopt.errors import UserError
from graphopt.inductor.captured import phase_of
from graphopt.inductor.hooks import Request, Requests, carried_out, replaced
from graphopt.inductor.strided_reads import with_strided_reads_fixed
from graphopt.inductor.version import check_version
from graphopt.ranking.asked import Asked, asked_of
from graphopt.readers.pytorch.program_file import FxProgram, key_of, unpacked_program

UNCACHED = {"fx_graph_cache": False, "fx_graph_remote_cache": False}  # whose keys know nothing of decisions
NOTHING = Asked({}, {})


class _Compiler:
    """Compiles the graphs of one program. carried: keys of those that a decision was carried out in."""

    def __init__(self, decisions: Mapping[str, Asked]) -> None:
        self._decisions, self.carried = decisions, set[str]()

    def compile(self, gm: GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Any:
        """In place of `compile_fx_inner`: what is asked holds from the lowering of the graph until it is compiled."""
        with ExitStack() as stack:

            def lowering(gm: GraphModule, **given: Any) -> GraphLowering:
                asked = self._asked(gm, settings)
                if asked != NOTHING:
                    requests = {name: Request(word) for name, word in asked.requests.items()}
                    stack.enter_context(config.patch(options_of(asked.knobs)))
                    stack.enter_context(carried_out(Requests(requests)))
                return GraphLowering(gm, **given)

            stack.enter_context(config.patch(UNCACHED))
            stack.enter_context(replaced(inductor, "GraphLowering", lowering))
            return inductor.compile_fx_inner(gm, example_inputs, **settings)

    def _asked(self, gm: GraphModule, settings: Mapping[str, Any]) -> Asked:
        try:
            key = key_of(gm, phase_of(settings))
        except GraphError:  # changing shapes, or no program of tensor operators
            return NOTHING
        self.carried |= {key} & set(self._decisions)
        return self._decisions.get(key, NOTHING)


def decided(decisions: Mapping[str, Asked], carried: set[str] | None = None) -> Callable[..., Any]:
    """A backend for `torch.compile`. decisions: by keys of programs; carried: is given the keys of those that were
    carried out. Raises UserError where this torch's Inductor is not known."""
    check_version()
    compiler = _Compiler(decisions)
    compiler.carried = set() if carried is None else carried

    def graphopt(gm: GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
        patches = {**with_strided_reads_fixed(), **(options or {})}
        with functorch_config.patch(enable_autograd_cache=False):
            return inductor.compile_fx(gm, example_inputs, compiler.compile, config_patches=patches)

    return graphopt


def backend(gm: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Any:
    """What `torch.compile(backend="graphopt")` finds. options: `decisions`, a folder of decision files, beside
    Inductor's own."""
    given = dict(options or {})
    if "decisions" not in given:
        raise UserError('backend="graphopt" takes options={"decisions": FOLDER}, a folder of decision files')
    return decided(decisions_in(given.pop("decisions")))(gm, example_inputs, given)


def decisions_in(folder: str | Path) -> dict[str, Asked]:
    """What the decision files of a folder ask, by keys of their programs. Raises UserError as `answers_in`, and where
    one is of a graph that was not captured for Inductor."""
    return {program_key(answer, str(file)): asked_of(answer.plan, 0) for file, answer in answers_in(folder)}


def answers_in(folder: str | Path) -> list[tuple[Path, Answer]]:
    """The decision files of a folder (*.npz). Raises UserError where there are none, or one cannot be read."""
    files = sorted(Path(folder).glob("*.npz"))
    if not files:
        raise UserError(f"no decision files in {folder}; `save` of an optimized module writes them")
    return [(file, Answer.load(file)) for file in files]


def program_of(answer: Answer, source: str) -> FxProgram:
    """The program that an answer is about. source: where it is from, for messages."""
    if not isinstance(answer.graph.program, bytes):
        raise UserError(f"{source} is of a graph without a program for TorchInductor; solve with cost=inductor")
    return unpacked_program(answer.graph.program, source)


def program_key(answer: Answer, source: str) -> str:
    program = program_of(answer, source)
    return key_of(program.gm, program.phase)
