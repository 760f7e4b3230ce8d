"""Placement, scheduling and joint tasks: defaults, masks, keys, and plans that are always valid."""

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from graphopt.config.construct import construct
from graphopt.config.suggested_machine import filled
from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits, default_inline
from graphopt.core.machine import Device, Machine, make_machine
from graphopt.core.oracles import check
from graphopt.costs.simulator import Simulator
from graphopt.errors import UserError
from graphopt.tasks.joint import Joint
from graphopt.tasks.keys import devices, transfers
from graphopt.tasks.placement import Placement
from graphopt.tasks.scheduling import Scheduling, place

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


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), which=st.integers(0, 6))
def test_every_decision_and_every_key_makes_a_valid_plan(seed, which):
    rng, graph, task = np.random.default_rng(seed), network(seed), tasks()[which]
    shape = (3, graph.num_ops, len(task.heads))
    decisions = rng.integers(0, [head.count for head in task.heads], shape).astype(np.int16)
    for plans in (
        task.realise(graph, decisions),
        task.realise(graph, task.initial(graph)[None]),
        task.realise_keys(graph, rng.random((3, task.key_count(graph)))),
    ):
        for b in range(len(plans)):
            assert check(plans[b], MACHINE) == []


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
    assert counts == {"gpu2": 2, "gpu4_pcie": 4, "gpu8_nvlink": 8, "gpu8_pcie": 8, "cpu_gpu": 2, "identical": 4,
                      "sequential_send": 2, "a6000_xla": 1, "h200_xla": 1, "accelerators6": 7,
                      "accelerators": 3}  # fmt: skip
    assert made["gpu4_pcie"].devices[3].contraction_flops == 60e12
    assert [d.vector_flops for d in made["cpu_gpu"].devices] == [10e12, 0.1e12]
    assert made["h200_xla"].devices[0].l2_bytes == 50 * 2**20


def test_a_misspelt_machine_field_is_a_sentence():
    with pytest.raises(UserError, match="machine 'm', device 'gpu' has no field bandwith; known fields: bandwidth"):
        make_machine(name="m", devices={"gpu": {"bandwith": 1}}, link_bandwidth=1.0, link_latency=0.0, transfer={})
    with pytest.raises(UserError, match="machine 'm', transfer has no field lanes"):
        make_machine(name="m", devices={"gpu": {}}, link_bandwidth=1.0, link_latency=0.0, transfer={"lanes": "link"})
