"""Tasks: what their heads mean, and the plans that decisions make."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fusion_graphs import GPU, RICH, random_graph
from fusion_reference import Reference
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from graphopt.core.errors import UserError
from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits, default_inline
from graphopt.core.machine import Device, Machine, make_machine
from graphopt.core.oracles import check
from graphopt.costs.simulator import Simulator
from graphopt.problems.keys import devices, transfers
from graphopt.problems.tasks.fusion import Fusion
from graphopt.problems.tasks.placement import Joint, Placement, Scheduling, place
from graphopt.run.config.construct import construct
from graphopt.run.config.suggested_machine import filled

# --- The fusion task: defaults, masks, decisions and keys that say the same thing, plans that are always valid.

FUSION_CAPS = {"max_ops": 12, "max_inputs": 8, "max_duplicates": 4}
GPUS = Machine(name="m", devices=(GPU, RICH))
SEEDS = st.integers(0, 10**6)


def fusion(decision: str, levels: int = 20, **caps: int) -> Fusion:
    return Fusion(
        name="fusion",
        machine=GPUS,
        decision=decision,
        numerics=None,
        device="cpu",
        levels=levels,
        **{**FUSION_CAPS, **caps},
    )


BOTH = pytest.mark.parametrize("task", [fusion("binary"), fusion("priority", 5)], ids=["binary", "priority"])


def draws(task: Fusion, graph, seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, task.num_choices, (rows, graph.num_ops, 1)).astype(np.int16)


@BOTH
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_the_canonical_decision_has_the_same_plan_and_is_its_own_canonical(task: Fusion, seed: int) -> None:
    graph = random_graph(seed, 25)
    for decision in (*draws(task, graph, seed, 2), task.initial(graph)):
        canonical = task.canonical(graph, decision)
        plan, again = (task.realise(graph, d[None]).inline[0] for d in (decision, canonical))
        assert np.array_equal(plan, again)
        assert np.array_equal(task.canonical(graph, canonical), canonical)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS)
def test_a_canonical_binary_decision_says_what_happens(seed: int) -> None:
    graph, task = random_graph(seed, 25), fusion("binary")
    canonical = task.canonical(graph, draws(task, graph, seed, 1)[0])[:, 0].astype(bool)
    views = view_inline(graph)
    assert not (canonical & views).any()
    assert np.array_equal(canonical | views, task.realise(graph, canonical[None, :, None].astype(np.int16)).inline[0])


@BOTH
def test_the_mask_is_who_has_a_choice(task: Fusion) -> None:
    """Views, outputs, opaque ops and what they read have none; what the mask hides does not matter."""
    graph = random_graph(4, 60)
    hidden = ~task.mask(graph)
    assert set(np.flatnonzero(~hidden[:, 0]).tolist()) == Reference(graph).may_inline
    base, other = draws(task, graph, 1, 1), draws(task, graph, 2, 1)
    mixed = np.where(hidden, other, base)
    assert np.array_equal(task.realise(graph, mixed).inline, task.realise(graph, base).inline)


@BOTH
def test_keys_are_decisions(task: Fusion) -> None:
    """Key k means level floor(k x choices); 1.0 is the last level."""
    graph, choices = random_graph(5, 50), task.num_choices
    decisions = draws(task, graph, 6, 4)
    low, high = decisions[:, :, 0] / choices, (decisions[:, :, 0] + 0.999) / choices
    expected = task.realise(graph, decisions).inline
    assert np.array_equal(task.realise_keys(graph, low).inline, expected)
    assert np.array_equal(task.realise_keys(graph, high).inline, expected)
    last = np.full((1, graph.num_ops, 1), choices - 1, np.int16)
    ones = task.realise_keys(graph, np.ones((1, graph.num_ops)))
    assert np.array_equal(ones.inline, task.realise(graph, last).inline)


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_the_initial_decision_is_the_compilers_default(task: Fusion, seed: int) -> None:
    """As a binary decision exactly; as priorities, its ops are all tried, so none that fits is lost."""
    graph = random_graph(seed, 60)
    default, plan = default_inline(graph, task.limits), task.realise(graph, task.initial(graph)[None]).inline[0]
    assert np.array_equal(plan, default)


def test_the_default_is_faster_than_storing_everything() -> None:
    cost = Simulator(name="s", machine=GPUS, objective="runtime", threads=1)
    task = fusion("binary")
    for seed in range(5):
        graph = random_graph(seed, 60)
        nothing = np.zeros((1, graph.num_ops, 1), np.int16)
        default, stored = (
            float(cost.price(task.realise(graph, d)).cost[0]) for d in (task.initial(graph)[None], nothing)
        )
        assert default < stored


def test_two_levels_of_priority_try_later_ops_first_as_the_binary_task_does() -> None:
    """With one level there is no order but that of the graph; both tasks then agree wherever caps do not bind."""
    loose = {"max_ops": 1000, "max_inputs": 1000, "max_duplicates": 1000}
    binary, priority = fusion("binary", **loose), fusion("priority", 2, **loose)
    for seed in range(10):
        graph = random_graph(seed, 40)
        decisions = draws(binary, graph, seed, 3)
        assert np.array_equal(binary.realise(graph, decisions).inline, priority.realise(graph, decisions).inline)


# --- Placement, scheduling and joint tasks: defaults, masks, keys, and plans that are always valid.

CONF = Path(__file__).parents[2] / "conf"
CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}
MACHINE = Machine(name="m", devices=tuple(Device(launch=1.0, capacity=1e9) for _ in range(3)), link_bandwidth=100.0)


def network(seed: int, blocks: int = 6) -> Graph:
    """Blocks of matmul, view, elementwise and reduction ops that read one or two earlier results."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"network{seed}")
    made = [b.tensor((8, 8))]
    for _ in range(blocks):
        x, y = (made[i] for i in rng.integers(0, len(made), 2))
        weight = b.tensor((8, 8), weight=True)
        a, c, d, e = (b.tensor((8, 8)) for _ in range(4))
        b.op("matmul", [x, weight], [a])
        b.op("transpose", [a], [c])
        b.op(str(rng.choice(["add", "mul"])), [c, y], [d])
        b.op(str(rng.choice(["relu", "exp", "softmax"])), [d], [e])
        made += [d, e]
    b.output(made[-1])
    return b.build()


def tasks(machine: Machine = MACHINE) -> list:
    return [
        Placement(name="p", machine=machine, fuse=False, **CAPS),
        Placement(name="pf", machine=machine, fuse=True, **CAPS),
        *(Scheduling(name=h, machine=machine, levels=5, placement=h, fuse=f, **CAPS)
          for h, f in (("single", False), ("heft", True), ("blocks", False))),
        Joint(name="j", machine=machine, levels=5, fuse=True, **CAPS),
        Joint(name="jn", machine=machine, levels=5, fuse=False, **CAPS),
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, which=st.integers(0, 8))
def test_every_decision_and_every_key_makes_a_valid_plan(seed, which):
    """Fusion's on the first device."""
    task, rng = [*tasks(), fusion("binary"), fusion("priority", 5)][which], np.random.default_rng(seed)
    graph = random_graph(seed, 25) if isinstance(task, Fusion) else network(seed)
    counts = [head.count for head in task.heads]
    decisions = rng.integers(0, counts, (3, graph.num_ops, len(counts))).astype(np.int16)
    keys = rng.random((3, task.key_count(graph)))
    for decided in (decisions, task.initial(graph)[None], None):
        plans = task.realise_keys(graph, keys) if decided is None else task.realise(graph, decided)
        assert [check(plans[b], task.machine) for b in range(len(plans))] == [[]] * len(plans)
        assert not (isinstance(task, Fusion) and plans.device.any())


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.name)
def test_what_the_mask_hides_does_not_matter(task):
    rng, graph = np.random.default_rng(1), network(1)
    base = rng.integers(0, [head.count for head in task.heads], (1, graph.num_ops, len(task.heads))).astype(np.int16)
    hidden = ~task.mask(graph)
    other = np.where(hidden, rng.integers(0, [head.count for head in task.heads], base.shape), base).astype(np.int16)
    cost = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1)
    assert hidden.any()
    assert cost.price(task.realise(graph, base)).cost == cost.price(task.realise(graph, other)).cost


def test_fusion_states_are_views_or_the_compilers_default():
    graph = network(0)
    plain, fused = (Placement(name="p", machine=MACHINE, fuse=fuse, **CAPS) for fuse in (False, True))
    assert np.array_equal(plain.realise(graph, plain.initial(graph)[None]).inline[0], view_inline(graph))
    default = default_inline(graph, KernelLimits(**CAPS))
    assert np.array_equal(fused.realise(graph, fused.initial(graph)[None]).inline[0], default)
    joint = Joint(name="j", machine=MACHINE, levels=4, fuse=True, **CAPS)
    assert np.array_equal(joint.realise(graph, joint.initial(graph)[None]).inline[0], default)


def test_the_default_placement_is_the_first_device_that_holds_the_weights():
    graph = network(0)
    weights = graph.tensor_bytes[graph.is_weight].sum()
    small = Machine(name="m", devices=(Device(capacity=weights - 1), Device(capacity=weights), Device()))
    assert set(Placement(name="p", machine=small, fuse=False, **CAPS).initial(graph)[:, 0].tolist()) == {1}
    full = Machine(name="m", devices=(Device(capacity=1), Device(capacity=1)))
    assert set(Joint(name="j", machine=full, levels=2, fuse=False, **CAPS).initial(graph)[:, 0].tolist()) == {0}


def test_one_device_leaves_nothing_to_place():
    one = Machine(name="one", devices=(Device(),))
    graph = network(0)
    assert not Placement(name="p", machine=one, fuse=False, **CAPS).mask(graph).any()
    joint = Joint(name="j", machine=one, levels=4, fuse=False, **CAPS)
    assert joint.mask(graph).any(0).tolist() == [False, True]
    assert joint.key_count(graph) == 2 * graph.num_ops  # nothing travels


def test_key_layout():
    graph = network(0, blocks=1)
    task = Joint(name="j", machine=MACHINE, levels=4, fuse=False, **CAPS)
    n, results = graph.num_ops, 4
    keys = np.random.default_rng(0).random((2, task.key_count(graph)))
    assert keys.shape[1] == 3 * n + n + 3 * results
    plans = task.realise_keys(graph, keys)
    assert plans.device[1, 2] == np.argmax(keys[1, 6:9])
    assert plans.priority[0, 3] == keys[0, 3 * n + 3]
    first = int(graph.output_ptr[0])
    assert plans.transfer[1, first + 1, 2] == keys[1, 4 * n + 3 + 2]
    assert devices(np.array([[0.1, 0.9, 0.5, 0.2]]), 2).tolist() == [[1, 0]]
    assert transfers(graph, keys, 1) is None


def test_placement_heuristics_by_hand():
    b = GraphBuilder("parallel")
    x = b.tensor((1,), num_bytes=0)
    for _ in range(6):
        b.op("opaque", [x], [b.tensor((1,), num_bytes=0)], flops=1.0)
    graph = b.build()
    three = Machine(name="m", devices=tuple(Device() for _ in range(3)))
    assert place(graph, three, "single").tolist() == [0] * 6
    assert place(graph, three, "blocks").tolist() == [0, 0, 1, 1, 2, 2]
    assert sorted(place(graph, three, "heft").tolist()) == [0, 0, 1, 1, 2, 2]


def test_machine_presets_are_what_they_say():
    with initialize_config_dir(str(CONF), version_base=None):
        made = {}
        for path in sorted((CONF / "machine").glob("*.yaml")):
            node = OmegaConf.to_container(compose(config_name=f"machine/{path.stem}").machine, resolve=True)
            if path.stem == "accelerators":  # as a file says
                with pytest.raises(UserError, match="count, capacity is null"):
                    construct(node, "machine")
                node["devices"] = filled(
                    node["devices"], {"accelerator": {"count": 3, "capacity": 5.0}, "cpu": {"count": 0}}
                )
            made[path.stem] = construct(node, "machine")
    assert all(machine.name == name for name, machine in made.items())
    counts = {name: machine.num_devices for name, machine in made.items()}
    assert counts == {"gpu2": 2, "gpu4_pcie": 4, "gpu4_small": 4, "gpu8_nvlink": 8, "gpu8_pcie": 8, "cpu_gpu": 2,
                      "identical": 4, "sequential_send": 2, "a6000_xla": 1, "h200_xla": 1, "accelerators6": 7,
                      "accelerators": 3, "cpu_core": 1}  # fmt: skip
    assert made["gpu4_pcie"].devices[3].contraction_flops == 60e12
    assert [d.vector_flops for d in made["cpu_gpu"].devices] == [10e12, 0.1e12]
    assert made["h200_xla"].devices[0].l2_bytes == 50 * 2**20


def test_a_misspelt_machine_field_is_a_sentence():
    with pytest.raises(UserError, match="machine 'm', device 'gpu' has no field bandwith; known fields: bandwidth"):
        make_machine(name="m", devices={"gpu": {"bandwith": 1}}, link_bandwidth=1.0, link_latency=0.0, transfer={})
    with pytest.raises(UserError, match="machine 'm', transfer has no field lanes"):
        make_machine(name="m", devices={"gpu": {}}, link_bandwidth=1.0, link_latency=0.0, transfer={"lanes": "link"})


def test_of_a_compilers_graph_its_own_choices_are_the_default_and_ops_without_a_choice_stay() -> None:
    net = GraphBuilder("asked")
    x, a, b, c = (net.tensor((8,)) for _ in range(4))
    net.op("relu", [x], [a], name="free", attributes={"stored": False})
    net.op("exp", [a], [b], name="kept", attributes={"stored": True})
    net.op("opaque", [b], [c], name="extern")
    net.output(c)
    graph, task = net.build(), fusion("binary")
    assert task.initial(graph)[:, 0].tolist() == [1, 0, 0] and task.mask(graph)[:, 0].tolist() == [True, True, False]
    plans = task.realise(graph, np.ones((1, 3, 1), np.int16))
    assert plans.inline[0].tolist() == [True, True, False] and check(plans, GPUS) == []  # fed to an opaque op as well
    wrong = replace(plans, inline=np.ones((1, 3), np.bool_))
    assert check(wrong, GPUS) == ["op extern, about which the compiler has no choice, is inlined"]
