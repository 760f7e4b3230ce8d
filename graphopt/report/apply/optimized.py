"""`Optimized`: a module that runs as TorchInductor compiles it under the decisions found for its graphs."""

import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from graphopt.core.compiler import Numerics
from graphopt.core.graph import Graph
from graphopt.core.utils.registry import option
from graphopt.graphs.readers.pytorch.nested_tensors import arguments_of, tensors_in
from graphopt.graphs.readers.pytorch.program_file import key_of, packed_program
from graphopt.graphs.readers.pytorch.program_inputs import raw
from graphopt.hardware.apply.allocator import use_allocator
from graphopt.hardware.costs.inductor import NOTHING, Allocator, Inductor
from graphopt.hardware.inductor.captured import as_graph, backpropagate, capture_compiled, copied
from graphopt.hardware.measure.price_table import PriceTable
from graphopt.hardware.requests import CompilerRequest, least_of_other_bits, request_of
from graphopt.report.answer import Answer
from graphopt.report.apply.compile_backend import Alike, alike_of, changes_of, decided
from graphopt.run.config.construct import construct

FORBIDDEN = {
    "equal": "not bit-equal to the default's outputs or gradients",
    "close": "too far from the default's outputs or gradients",
}
BUILDERS = min(2, os.cpu_count() or 1)  # processes that lower and compile
FLUSHED = 0.9  # of the time: at most this is said of denormal numbers
TOLERANCE = 1e-3  # of `close`: difference over the largest absolute value of a tensor
Solve = Callable[[Graph], Answer]


@dataclass(frozen=True)
class Check:
    """Outputs and gradients under decisions against those of Inductor's default. numerics: the condition."""

    numerics: Numerics
    reference: list[Tensor]

    def holds(self, found: list[Tensor]) -> bool:
        pairs = list(zip(self.reference, found))
        return len(found) == len(self.reference) and all(a.shape == b.shape and self._alike(a, b) for a, b in pairs)

    def _alike(self, a: Tensor, b: Tensor) -> bool:
        if raw(a) == raw(b) or self.numerics == "equal" or not a.is_floating_point():
            return raw(a) == raw(b)
        limit = TOLERANCE * float(a.abs().nan_to_num(0.0, 0.0, 0.0).max())
        return torch.allclose(a, b, rtol=0.0, atol=limit, equal_nan=True)


class Optimized(nn.Module):
    """Called as `module` is, whose weights it uses. answers: by names of graphs (`inference`, or `forward` and
    `backward`), each with all that was measured; undone: names of those whose decision is not used, since outputs or
    gradients would not have been as they have to be. others: of graphs, the least measured time over the default's of
    code that gives other bits. flushed: of graphs, the time with denormal numbers flushed to zero over the time
    without. allocator: of graphs, seconds by default with memory kept and with the user's malloc, where memory is kept.

    Inputs of other shapes make graphs of the same structure, which keep a decision unless a loss is predicted there.
    Calls with gradients where none were asked for make graphs without a decision: they are compiled by default.
    """

    _compiled: Any

    def __init__(self, module: nn.Module, answers: Mapping[str, Answer], decisions: Mapping[str, CompilerRequest],
                 undone: tuple[str, ...], numerics: Numerics,
                 allocator: Mapping[str, tuple[float, float]] | None = None,
                 alike: Mapping[str, Alike] = MappingProxyType({}),
                 others: Mapping[str, float] = MappingProxyType({}),
                 flushed: Mapping[str, float] = MappingProxyType({})) -> None:  # fmt: skip
        super().__init__()
        self.allocator, self.others, self.flushed = dict(allocator or {}), dict(others), dict(flushed)
        self.module, self.answers, self.undone, self.numerics = module, dict(answers), undone, numerics
        compiled = torch.compile(module, backend=decided(decisions, alike=alike))
        object.__setattr__(self, "_compiled", compiled)  # no second module of the same weights

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def report(self) -> str:
        """A page of text: per graph times, noise, evaluations, changes to the default and declined changes."""
        kept = [f"memory kept: {name} takes {one * 1e3:.3f} ms by default, {other * 1e3:.3f} with the user's malloc, "
                f"ratio {one / other:.3f}" for name, (one, other) in self.allocator.items()]  # fmt: skip
        close = [f'{name}: {ratio:.3f} with other bits, which numerics="close" allows'
                 for name, ratio in self.others.items() if ratio < 1 and self.numerics == "equal"]  # fmt: skip
        small = [f"denormal numbers: {name} takes {ratio:.3f} of its time after torch.set_flush_denormal(True), which "
                 "makes what is below 1.2e-38 zero"
                 for name, ratio in self.flushed.items() if ratio < FLUSHED]  # fmt: skip
        said = page(type(self.module).__name__, self.answers, self.undone, self.numerics)
        return "\n".join([said, *close, *small, *kept])

    __str__ = report

    def save(self, folder: str | Path) -> Path:
        """Writes the decisions that are used, as files that backend="graphopt" of torch.compile reads."""
        for name, answer in self.answers.items():
            if name not in self.undone:
                answer.save(Path(folder) / f"{name}.npz")
        return Path(folder)


def optimized(module: nn.Module, inputs: Any, *, backward: bool, numerics: Numerics, solve: Solve,
              allocator: Allocator = "user") -> Optimized:  # fmt: skip
    """Captures the graphs that torch.compile makes, solves each, and keeps decisions that leave outputs and gradients
    as `numerics` says. The module and the inputs stay as they are. Raises GraphError."""
    use_allocator(allocator)
    cost: Inductor = construct(option("cost", "inductor") | {"builders": BUILDERS}, "cost", {})
    cost.builds.begin()  # all that solve a graph share them
    with torch.set_grad_enabled(backward):
        programs = capture_compiled(deepcopy(module), copied(inputs))
    answers = dict[str, Answer]()
    for name, program in programs.items():
        graph = as_graph(program, name=f"{type(module).__name__}.{name}", family=type(module).__name__)
        answers[name] = solve(replace(graph, program=packed_program(program)))
    requests = {name: request_of(answer.plan, 0) for name, answer in answers.items()}
    found = {name: request for name, request in requests.items() if request != NOTHING}
    keys = {name: key_of(program.gm, program.phase) for name, program in programs.items()}

    def outcome(names: list[str]) -> list[Tensor]:
        return _outcome(module, inputs, {keys[name]: found[name] for name in names}, backward)

    kept = _kept(list(found), outcome, numerics)
    undone = tuple(name for name in found if name not in kept)
    gains = dict[str, tuple[float, float]]()
    if allocator == "keep":
        gains = {name: cost.kept_and_not(answer.graph) for name, answer in answers.items()}
    used = {name: found[name] if name in kept else NOTHING for name in answers}
    flushed = {name: cost.flushed(answer.graph, used[name]) for name, answer in answers.items()
               if programs[name].device == "cpu"}  # fmt: skip
    prices = PriceTable(cost.service.table.path)
    return Optimized(module, answers, {keys[name]: found[name] for name in kept}, undone, numerics, gains,
                     dict(alike_of(programs[name], found[name]) for name in kept),
                     {name: least_of_other_bits(prices, answer.graph) for name, answer in answers.items()},
                     flushed)  # fmt: skip


def _kept(names: list[str], outcome: Callable[[list[str]], list[Tensor]], numerics: Numerics) -> list[str]:
    """The graphs whose decisions hold together: all, or as many as can be added one by one."""
    if not names:
        return []
    check, kept = Check(numerics, outcome([])), list[str]()
    if check.holds(outcome(names)):
        return names
    for name in names if len(names) > 1 else []:
        kept += [name] if check.holds(outcome([*kept, name])) else []
    return kept


def _outcome(module: nn.Module, inputs: Any, decisions: Mapping[str, CompilerRequest], backward: bool) -> list[Tensor]:
    """The results of a copy of the module, then its gradients and those of inputs, then its weights and buffers."""
    own, (args, kwargs) = deepcopy(module), arguments_of(copied(inputs))
    backend = decided(decisions)
    # Random numbers are the same in every call, and the caller's go on as if there had been none.
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(backward):
        torch.manual_seed(0)
        made = torch.compile(own, backend=backend)(*args, **kwargs)
        results = [t.detach().clone() for t in tensors_in(made)]
        backpropagate(made)
    held = [*own.parameters(), *own.buffers()]
    gradients = [t.grad for t in [*held, *tensors_in((args, kwargs))] if t.grad is not None]
    return [t.detach().cpu() for t in (*results, *gradients, *held)]


def runs_on_gpu(module: nn.Module, inputs: Any) -> bool:
    """Whether a weight or an input lies there."""
    return any(tensor.is_cuda for tensor in [*module.parameters(), *module.buffers(), *tensors_in(inputs)])


def page(module: str, answers: Mapping[str, Answer], undone: tuple[str, ...], numerics: str) -> str:
    """Gains, and declined changes. answers: by names of graphs; undone: those that are not used."""
    lines = [
        f"{module}, compiled by TorchInductor; numerics: {numerics}. Times of one thread, raced in fresh processes."
    ]
    for name, answer in answers.items():
        prices, changes = answer.prices, changes_of(request_of(answer.plan, 0))
        default, ratio = prices["initial"], prices["judged"] / prices["initial"]
        now, searched = 1.0 if name in undone else ratio, prices["searched"] / prices["searched_initial"]
        if name in undone:
            changes = [f"declined, {FORBIDDEN[numerics]} (ratio {ratio:.3f}): " + "; ".join(changes)]
        elif not changes and searched >= 1:
            changes = ["as by default", "declined: nothing that was tried and is allowed took less time"]
        elif not changes:
            changes = ["as by default", f"declined: the lowest ratio while searching, {searched:.3f}, was not shown to "
                                        "be below 1 beyond noise in fresh processes"]  # fmt: skip
        lines += [
            "",
            f"{name}: {answer.graph.num_ops} ops; default {1e3 * default:.4g} ms, now {1e3 * default * now:.4g} ms, "
            f"ratio {now:.3f}, noise {100 * prices['noise']:.2g} % (with that of the default against its copy), "
            f"{answer.facts['evals']} evaluations",
            *(f"  {change}" for change in changes),
        ]
    return "\n".join(lines)
