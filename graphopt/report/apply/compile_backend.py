"""Fusion decisions carried out by `torch.compile`: `torch.compile(module, backend="graphopt")` decides about each graph
by predicted times, and compares that with the default for a moment. With `options={"decisions": FOLDER}`, or
`backend=decided(...)`, earlier decisions are used.

Forward, backward and inference graphs are recognised by Inductor's input (`key_of`). A graph of the same operators on
other shapes (`structure_of`) keeps a decision, unless `cost=generated_code` predicts a loss there. Graphs without a
decision are compiled as Inductor does by itself.
"""

import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch._inductor import config, list_mode_options
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import get_donated_idxs
from torch.fx import GraphModule

from graphopt.core.cli import composed
from graphopt.core.compiler import KNOBS, Numerics
from graphopt.core.compiler import options as options_of
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.readers.pytorch.program_file import FxProgram, Phase, key_of, packed_program, unpacked_program
from graphopt.graphs.readers.pytorch.program_inputs import InputSpec
from graphopt.hardware.apply.allocator import free_a_large_block, use_allocator
from graphopt.hardware.code_time import CodeTime
from graphopt.hardware.costs.calibrated import preset_named
from graphopt.hardware.costs.inductor import NOTHING, GeneratedCode
from graphopt.hardware.inductor.captured import as_graph, phase_of
from graphopt.hardware.inductor.lowering import Request, Requests, carried_out, check_version, lower, replaced
from graphopt.hardware.inductor.strided_reads import with_strided_reads_fixed
from graphopt.hardware.measure.target import Failure
from graphopt.hardware.requests import CompilerRequest, LoweredRequests, request_of
from graphopt.hardware.search.compiler_policy import CompilerPolicy, predictions
from graphopt.problems.optimizer import solve
from graphopt.report.answer import Answer
from graphopt.run.config.build import Parts, build

log = logging.getLogger(__name__)
WORDS = {"store": "stored", "inline": "inlined", "cut": "cut"}  # of requests
NAMED = 12  # ops of a kind that are named
UNCACHED = {"fx_graph_cache": False, "fx_graph_remote_cache": False}  # whose keys know nothing of decisions
Decide = Callable[[FxProgram], CompilerRequest]


class Alike(NamedTuple):
    """A request about a graph, and the names of the graph's nodes in their order, of which another graph of the same
    structure has its own."""

    request: CompilerRequest
    names: tuple[str, ...]

    def renamed(self, names: Sequence[str]) -> CompilerRequest:
        own = dict(zip(self.names, names, strict=True))
        return CompilerRequest({own[name]: word for name, word in self.request.requests.items()}, self.request.knobs)


def decided(decisions: Mapping[str, CompilerRequest], carried: set[str] | None = None, *,
            alike: Mapping[str, Alike] = MappingProxyType({}),
            decide: Decide | None = None) -> Callable[..., Any]:  # fmt: skip
    """A backend for `torch.compile`. decisions: by keys of programs; carried: is given the keys of those that were
    carried out. alike: by structure, for graphs of other shapes; decide: is asked about all other graphs. Raises
    UserError where this torch's Inductor is not known."""
    check_version()
    done = set() if carried is None else carried

    def request_for(gm: GraphModule, phase: Phase) -> CompilerRequest:
        try:
            key = key_of(gm, phase)
        except GraphError:  # changing shapes, or no program of tensor operators
            key = ""
        if key in decisions:
            done.add(key)
            return decisions[key]
        structure, names = structure_of(gm, phase)
        if structure in alike:
            return _held(alike[structure].renamed(names), gm, phase, fixed=bool(key))
        return NOTHING if decide is None or not key else decide(_program(gm, phase))

    def compile_graph(gm: GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Any:
        """In place of `compile_fx_inner`: a request holds from the lowering of the graph until it is compiled."""
        with ExitStack() as stack:

            def lowering(gm: GraphModule, **given: Any) -> GraphLowering:
                request = request_for(gm, phase_of(settings))
                if request != NOTHING:
                    free_a_large_block()
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


def _program(gm: GraphModule, phase: Phase) -> FxProgram:
    """A graph as lowering needs it. Its inputs are not known: numbers are drawn around zero, without a pattern."""
    given = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in given]
    specs = [InputSpec(tuple(t.shape), tuple(t.stride()), kind, "normal" if t.is_floating_point() else "uniform")
             for t, kind in zip(given, kinds)]  # fmt: skip
    donated = tuple(get_donated_idxs() or ()) if phase == "backward" else ()
    there = any(tensor.device.type != "cpu" for tensor in given)
    return FxProgram(gm, tuple(specs), phase, donated, "cuda" if there else "cpu")


def _held(request: CompilerRequest, gm: GraphModule, phase: Phase, *, fixed: bool) -> CompilerRequest:
    """A request that was made for other shapes, or none where a loss is predicted."""
    if not fixed:
        warnings.warn(f"what was decided for fixed shapes is carried out in a {phase} graph of changing ones, "
                      "unmeasured", stacklevel=2)  # fmt: skip
        return request
    program, time = _program(gm, phase), CodeTime.of_preset(preset_named("here"))
    if program.device != "cpu":
        warnings.warn(f"what was decided for other shapes is left alone in this {phase} graph: cost=generated_code "
                      "knows code for CPUs only", stacklevel=2)  # fmt: skip
        return NOTHING
    words = {name: Request(word) for name, word in request.requests.items()}
    ratio = time.ratio(lower(program, words, request.knobs).features, lower(program, {}, {}).features)
    kept = "carried out" if ratio <= 1 else "left alone"
    warnings.warn(f"what was decided for other shapes is {kept} in this {phase} graph: {ratio:.2f} of the default's "
                  "time by cost=generated_code", stacklevel=2)  # fmt: skip
    return request if ratio <= 1 else NOTHING


def structure_of(gm: GraphModule, phase: Phase) -> tuple[str, tuple[str, ...]]:
    """(a key, equal for graphs of the same operators and types on tensors of the same origin, for any shapes; names of
    the nodes that make tensors)."""
    nodes = [node for node in gm.graph.nodes if isinstance(node.meta.get("val"), Tensor | tuple | list)]
    place = {node: i for i, node in enumerate(nodes)}
    made = [[str(node.target) if node.op == "call_function" else node.op, str(getattr(node.meta["val"], "dtype", "")),
             [place[source] for source in node.all_input_nodes if source in place]] for node in nodes]  # fmt: skip
    return sha256(json.dumps([phase, made]).encode()).hexdigest()[:24], tuple(node.name for node in nodes)


def backend(gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
            options: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
    """The entry point of `torch.compile(backend="graphopt")`. options: `decisions`, a folder of decision files; without
    it `algo=compiler_policy` decides by predicted times (`unmeasured`), and `numerics` is `equal` (the same bits) or
    `close`. `allocator`: `keep` where malloc is to keep freed memory in this process. The others, and mode, are
    Inductor's own; comparisons with the default are made without these."""
    given = {**list_mode_options(mode or "default"), **(options or {})}
    use_allocator(given.pop("allocator", "user"))
    if "decisions" in given:
        programs = decisions_in(given.pop("decisions"))
        alike = dict(alike_of(program, request) for program, request in programs)
        found = {key_of(program.gm, program.phase): request for program, request in programs}
        return decided(found, alike=alike)(gm, example_inputs, given)
    return decided({}, decide=partial(unmeasured, numerics=given.pop("numerics", "equal")))(gm, example_inputs, given)


def alike_of(program: FxProgram, request: CompilerRequest) -> tuple[str, Alike]:
    structure, names = structure_of(program.gm, program.phase)
    return structure, Alike(request, names)


@lru_cache(maxsize=1)
def _decider(numerics: Numerics) -> Parts:
    """Task, costs and policy, of which the last two lower in the same processes, for all graphs of this process."""
    words = ["dataset=lowered", "task=fusion", "machine=cpu_gpu", "cost=generated_code", "cost@judge=generated_code"]
    more = ["algo=compiler_policy", f"task.numerics={numerics}", f"cost.builders={min(4, os.cpu_count() or 1)}"]
    parts = build(composed([*words, *more]))
    assert isinstance(parts.algo, CompilerPolicy) and isinstance(parts.cost, GeneratedCode)
    parts.algo.predict = predictions(parts.cost)
    return parts


def unmeasured(program: FxProgram, numerics: Numerics) -> CompilerRequest:
    """The answer of `algo=compiler_policy` with a budget of 0, or no request. It is kept where it is faster than the
    default when both run for a moment, and gives bits that `numerics` allows. Others raise UserError."""
    if program.device != "cpu":
        warnings.warn(f"nothing is decided about a graph ({program.phase}) on a GPU: what predicts times knows code "
                      "for CPUs only; measure with cost=inductor and give decisions", stacklevel=2)  # fmt: skip
        return NOTHING
    parts = _decider(numerics)
    assert isinstance(parts.cost, GeneratedCode)
    try:
        graph = as_graph(program, name=program.phase, family="compiled")
        graph = replace(graph, program=packed_program(program))
        problem, _ = solve(parts.algo, graph, parts.task, parts.cost, evals=0)
        request = request_of(problem.solution().plans, 0)
        if request == NOTHING:  # also where no loop runs, so that no time is predicted
            log.info("%s: as by default; no gain is predicted", program.phase)
            return NOTHING
        found = _compared(parts.cost.requests, graph, request, numerics)
    except (GraphError, UserError) as error:  # also a cache that cannot be written
        warnings.warn(f"nothing is decided about a graph ({program.phase}): {error}", stacklevel=2)
        return NOTHING
    if isinstance(found, str):
        log.info("%s: as by default; %s", program.phase, found)
        return NOTHING
    log.info("%s: %s; %.3f of the default's time, %.3f predicted", program.phase, "; ".join(changes_of(request)), found,
             problem.best_cost / problem.initial_cost)  # fmt: skip
    return request


def _compared(requests: LoweredRequests, graph: Graph, request: CompilerRequest, numerics: Numerics) -> float | str:
    """Time over the default's, on drawn inputs and one thread; or why the default stays after all. Another process runs
    both."""
    found = requests.builds.ask("compare", requests.request(graph, request)).result()
    if isinstance(found, Failure):
        return f"what was decided cannot be run: {found.reason}"
    if numerics == "equal" and not found["equal"]:
        return "what was decided gives other bits"
    return float(found["ratio"]) if found["ratio"] < 1 else f"what was decided takes {found['ratio']:.2f} of its time"


def changes_of(request: CompilerRequest) -> list[str]:
    """The changes of a request, in words."""
    lines = []
    for word, done in WORDS.items():
        ops = [name for name, wanted in request.requests.items() if wanted == word]
        more = f" and {len(ops) - NAMED} more" if len(ops) > NAMED else ""
        lines += [f"{done}: {', '.join(ops[:NAMED])}{more}"] if ops else []
    knobs = [f"{knob.option} = {knob.values[request.knobs[knob.name]]}" for knob in KNOBS if knob.name in request.knobs]
    return lines + ([f"set: {', '.join(knobs)}"] if knobs else [])


def decisions_in(folder: str | Path) -> list[tuple[FxProgram, CompilerRequest]]:
    """The programs of the decision files (*.npz) of a folder, and the requests about them. Raises UserError where there
    are none, one cannot be read, or one is of a graph that was not captured for Inductor."""
    files = sorted(Path(folder).glob("*.npz"))
    if not files:
        raise UserError(f"no decision files in {folder}; `save` of an optimized module writes them")
    found = []
    for file in files:
        answer = Answer.load(file)
        if not isinstance(answer.graph.program, bytes):
            raise UserError(f"{file} is of a graph without a program for TorchInductor; solve with cost=inductor")
        found.append((unpacked_program(answer.graph.program, str(file)), request_of(answer.plan, 0)))
    return found
