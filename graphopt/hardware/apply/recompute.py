"""Which activations `torch.compile` saves for the backward pass, by the peak memory of the whole step.

torch's solvers fill a knapsack: saved bytes up to a share of those saved by default, most FLOP first. They do not count
the bytes that the backward pass holds while it computes the rest again, so a lower budget can take more memory. Here a
budget b limits that peak itself, to `lowest + b (default - lowest)`, and the least is computed twice within it.

    torch._functorch.config.activation_memory_budget = 0.05
    # Torch asks it, or
    torch._functorch.config.activation_memory_budget_solver = graphopt.hardware.apply.recompute.solver
    torch._inductor.config.custom_partitioner_fn = graphopt.hardware.apply.recompute.partitioner  # Inductor does, or
    torch.compile(model, backend=graphopt.hardware.apply.recompute.eager)  # without code generation

torch asks the solver only where its own rules save more than the budget, the partitioner always. With the latter the
peak does not rise when the budget falls. `eager` and `solver` count the bytes of ops that run one by one, `partitioner`
those of fused code (`fused_peaks`). All leave programs that they do not know (`_known`) to torch.
"""

import copy
import hashlib
import logging
import operator
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._functorch import config as functorch
from torch._functorch import partitioners
from torch._functorch._activation_checkpointing.knapsack import dp_knapsack
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, CustomPartitionerFn, get_hash_for_files
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from graphopt.core import split
from graphopt.core.errors import UserError
from graphopt.core.fusible import fusible
from graphopt.core.graph import Bool, Graph, GraphError
from graphopt.core.list_schedule import rough_seconds
from graphopt.core.machine import Device
from graphopt.core.operators import Category
from graphopt.core.split import Footprint, Step, complete, footprint, step_of
from graphopt.graphs.readers.pytorch.step_capture import read_step
from graphopt.hardware.inductor import fused_peak, strided_reads
from graphopt.hardware.inductor.fused_peak import fused_peaks
from graphopt.hardware.inductor.strided_reads import fix_strided_reads
from graphopt.search import saved_sets
from graphopt.search.saved_sets import Front, choose, search

log = logging.getLogger(__name__)

CORE = Device(name="cpu", launch=2e-6, vector_flops=8e9, contraction_flops=60e9, bandwidth=10e9)
"""One core of a server CPU; only ratios between ops count."""
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PATCHING = threading.RLock()
KEPT = 16  # fronts
_FRONTS: dict[str, tuple[Front, Footprint]] = {}  # with torch's own set; the front of a step answers all budgets


@dataclass(frozen=True, kw_only=True)
class RecomputeSettings:
    """device: its peaks price computing again. evals: saved sets that walks may price. seed: of walks. fused: of the
    best sets, how many TorchInductor lowers, so that their bytes are known; 0: ops run one by one."""

    device: Device
    evals: int
    seed: int
    fused: int


@dataclass(frozen=True)
class SavedSet:
    """The choice for a step: names of FX nodes whose results are saved, and the cost of the split; `default` is the
    cost of torch's set when only time counts."""

    nodes: tuple[str, ...]
    footprint: Footprint
    default: Footprint
    seconds: float  # of all ops once, by the device's peaks


Fuse = Callable[[Sequence[str]], tuple[int, int]]
"""Names of saved nodes -> bytes at the worst moments of the fused programs (`fused_peaks`)."""


def choose_saved(graph: FxGraph, info: Any, forward: int, budget: float, settings: RecomputeSettings,
                 fuse: Fuse | None = None) -> SavedSet:  # fmt: skip
    """The saved set of a joint graph. info: torch's `NodeInfo`. forward: outputs of the forward program. Without `fuse`
    bytes are those of ops that run one by one; with it, sets are looked for by the writes of fused kernels."""
    # torch's set when only time counts: its minimum cut with all of its rules.
    rules = partitioners.MinCutOptions(
        ban_if_used_far_apart=functorch.ban_recompute_used_far_apart,
        ban_if_long_fusible_chains=functorch.ban_recompute_long_fusible_chains,
        ban_if_materialized_backward=functorch.ban_recompute_materialized_backward,
        ban_if_not_in_allowlist=functorch.ban_recompute_not_in_allowlist,
        ban_if_reduction=functorch.ban_recompute_reductions,
    )
    own = partitioners.solve_min_cut(graph, info, rules)[0]
    read = read_step(graph, set(info.tangents_closure), forward, own, name="step", family="step")
    step, work = step_of(read), rough_seconds(read, settings.device)
    if fuse is not None:
        step = step._replace(fleeting=_fleeting(read, step))
    digest = hashlib.sha256(repr((settings, fuse is None)).encode())
    for array in (*step, work):
        digest.update(array.tobytes() + b"|")
    key = digest.hexdigest()
    if key not in _FRONTS:
        while len(_FRONTS) >= KEPT:
            del _FRONTS[next(iter(_FRONTS))]
        front, _ = search(step, work, [step.saved], evals=settings.evals, seed=settings.seed)
        kept, default = complete(step, step.saved), footprint(step, step.saved, work)
        peaks = None if fuse is None else lambda kept: fuse(_names(read, kept))
        _FRONTS[key] = (front, default) if peaks is None else _fused(front, kept, default, peaks, settings.fused)
    front, default = _FRONTS[key]
    best, kept = choose(front, default.peak, budget)
    return SavedSet(_names(read, kept), best, default, float(work.sum()))


def _fleeting(read: Graph, step: Step) -> Bool:
    """[S] results of element-wise ops that only element-wise ops and reductions read."""
    by_element = read.category == Category.ELEMENTWISE
    takes, view = by_element | (read.category == Category.REDUCTION), fusible(read)
    out = np.zeros(len(step.num_bytes), np.bool_)
    for op in np.flatnonzero(by_element):
        readers = view.out_op[view.op["out_start"][op] : view.op["out_end"][op]]
        out[step.made_ptr[op] : step.made_ptr[op + 1]] = len(readers) > 0 and takes[readers].all()
    return out


def _names(read: Graph, kept: Bool) -> tuple[str, ...]:
    return tuple(read.op_names[op] for op in np.flatnonzero(kept))


def _fused(front: Front, own: Bool, default: Footprint, peaks: Callable[[Bool], tuple[int, int]],
           count: int) -> tuple[Front, Footprint]:  # fmt: skip
    """The front by the bytes of fused programs, and the cost of torch's own set. That set is lowered, and `count`
    others: two thirds of them evenly along the front, then those next to the lowest. Where a set cannot be lowered,
    nothing is known of any, and all stays as it is."""
    found, known = Front(front.step, front.work), dict[int, int]()

    def lowered(kept: Bool) -> Footprint:
        forward, backward = peaks(kept)
        cost = footprint(front.step, kept, front.work)._replace(forward=forward, backward=backward)
        found.insert(cost, kept)
        return cost

    try:
        top = lowered(own)
        for place in np.linspace(0, len(front.sets) - 1, count - count // 3).round().astype(int).tolist():
            known[place] = known.get(place) or lowered(front.sets[place][1]).peak
        while len(known) < min(count, len(front.sets)):
            lowest = min(known, key=lambda place: known[place])
            place = min(set(range(len(front.sets))) - set(known), key=lambda place: abs(place - lowest))
            known[place] = lowered(front.sets[place][1]).peak
    except (GraphError, UserError) as error:
        log.warning("bytes are what fused code is expected to hold: %s", error)
        return front, default
    return found, top


def _known(graph: FxGraph) -> bool:
    """Whether shapes are fixed, no region is checkpointed by the user, and every node is an operator."""
    for node in graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        if node.meta.get("recompute") is not None or any(isinstance(v, SYMBOLS) for v in values):
            return False
        if any(isinstance(v, torch.Tensor) and any(type(d) is not int for d in v.shape) for v in values):
            return False
        called = node.op == "call_function" and node.target is not operator.getitem
        if called and not isinstance(node.target, torch._ops.OpOverload):
            return False
    return True


class BudgetSolver(CustomKnapsackSolver):
    """A value for `activation_memory_budget_solver`. torch asks which of a few ops to save and lets a minimum cut
    decide the rest; marks on nodes, those that checkpointing uses, leave that cut one solution, which is ours."""

    def __init__(self, settings: RecomputeSettings) -> None:
        self.settings = settings

    def __call__(self, memory: list[float], joint_graph: FxGraph, max_memory: float, node_info: Any,
                 all_recomputable_banned_nodes: list[Node]) -> tuple[list[int], list[int]]:  # fmt: skip
        every = list(range(len(memory)))
        _join(fix_strided_reads(joint_graph), node_info)
        if not _known(joint_graph):
            log.warning("the step has dynamic shapes or checkpointed regions: torch's own solver decides")
            runtimes = [partitioners.estimate_runtime(node) for node in all_recomputable_banned_nodes]
            _, saved, again = dp_knapsack(memory, runtimes, max_memory)
            return saved, again
        outputs: Any = joint_graph.output_node().args[0]
        gradients = sum("primals" in str(node.target) for node in joint_graph.find_nodes(op="placeholder"))
        found = choose_saved(joint_graph, node_info, len(outputs) - gradients, max_memory, self.settings)
        _mark(joint_graph, node_info, set(found.nodes))
        saved = [i for i in every if all_recomputable_banned_nodes[i].name in found.nodes]
        return saved, sorted(set(every) - set(saved))

    def uuid(self) -> Any:
        return _uuid(self.settings)


def _join(added: dict[Node, Node], info: Any) -> None:
    """Gives nodes that were added to a graph the place that torch has found for those which read them."""
    for node, reader in added.items():
        for kind in (info._required_fw_nodes, info.required_bw_nodes, info.tangents_closure, info.unclaimed_nodes):
            if reader in kind:
                kind.add(node)
        if reader in info.fw_order:
            info.fw_order[node] = info.fw_order[reader]
        node.dist_from_bw = reader.dist_from_bw + 1  # type: ignore[attr-defined]


def _mark(graph: FxGraph, info: Any, saved: set[str]) -> None:
    """Every early node that the backward program needs must be saved or must be computed again. A node that only the
    backward program needs counts as the forward one's where it is saved: torch heeds marks of the latter alone."""
    need = {node for node in graph.output_node().all_input_nodes if node in info.required_bw_nodes}
    for node in reversed(graph.nodes):
        late = node in info.tangents_closure
        if node.op != "call_function" or not (late or node in need):
            continue
        whole = node.args[0] if node.target is operator.getitem else node
        keeps = not late and whole.name in saved  # type: ignore[union-attr]
        if keeps:
            info._required_fw_nodes.add(node)
        if not late and whole is node:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.MUST_RECOMPUTE
        elif not late and not keeps:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        if not keeps or whole is not node:
            need.update(node.all_input_nodes)


class Partitioner(CustomPartitionerFn):
    """A value for `torch._inductor.config.custom_partitioner_fn`, or `partition_fn` of AOTAutograd. All but the choice
    of the saved set is torch's own partitioner. found: the last choice."""

    def __init__(self, settings: RecomputeSettings) -> None:
        self.settings = settings
        self.found: SavedSet | None = None

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        plain, outputs = partitioners.choose_saved_values_set, int(kwargs["num_fwd_outputs"])
        fix_strided_reads(gm.graph)
        kwargs.setdefault("compiler", "inductor")
        untouched = _copied(gm) if self.settings.fused else gm

        def split(module: GraphModule, choice: Callable[..., list[Node]]) -> tuple[GraphModule, GraphModule]:
            with _PATCHING, mock.patch.object(partitioners, "choose_saved_values_set", choice):
                return partitioners.min_cut_rematerialization_partition(module, joint_inputs, **kwargs)

        def fuse(names: Sequence[str]) -> tuple[int, int]:
            log.info("lowering of a step that saves %d values", len(names))
            given = split(_copied(untouched), lambda graph, info, **_: _nodes(graph, info, names))
            return fused_peaks(*given, outputs)

        def ours(graph: FxGraph, info: Any, memory_budget: float = 1) -> list[Node]:
            if memory_budget >= 1 or not _known(graph):
                return plain(graph, info, memory_budget=memory_budget)
            lowers = fuse if self.settings.fused else None
            self.found = choose_saved(graph, info, outputs, memory_budget, self.settings, lowers)
            return _nodes(graph, info, self.found.nodes)

        return split(gm, ours)

    def uuid(self) -> Any:
        return _uuid(self.settings)


def _copied(gm: GraphModule) -> GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, about its own copies
        return copy.deepcopy(gm)


def _nodes(graph: FxGraph, info: Any, names: Sequence[str]) -> list[Node]:
    """Nodes handed to the backward program: its inputs, and of ops with several results their parts."""
    nodes, saved = {node.name: node for node in graph.nodes}, list(info.inputs)
    for name in names:
        parts = [user for user in nodes[name].users if user.target is operator.getitem]
        saved += parts or [nodes[name]]
    return saved


def _uuid(settings: RecomputeSettings) -> Any:
    """Changes with the code that decides, so that no stale program comes out of torch's caches."""
    files = (__file__, *(str(module.__file__) for module in (split, saved_sets, strided_reads, fused_peak)))
    return get_hash_for_files(files, extra=repr(settings))


def eager_backend(partition: Callable[..., Any]) -> Callable[..., Any]:
    """A backend of `torch.compile` that runs both programs op by op, as `aot_eager_decomp_partition` does."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._inductor import lowering  # noqa: F401 # which the decomposition of pooling takes for loaded
    from torch._inductor.decomposition import select_decomp_table

    return aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, decompositions=select_decomp_table,
                        partition_fn=partition, keep_inference_input_mutations=True)  # fmt: skip


SETTINGS = RecomputeSettings(device=CORE, evals=8000, seed=0, fused=0)
solver = BudgetSolver(SETTINGS)
partitioner = Partitioner(replace(SETTINGS, fused=6))
eager = eager_backend(Partitioner(SETTINGS))
