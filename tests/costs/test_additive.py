"""Costs that are sums over ops, against numbers worked out by hand."""

import numpy as np
import pytest

from graphopt.core.machine import Device, make_machine
from graphopt.core.plan import Plans
from graphopt.costs.additive import Flops, flop
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program

LAUNCH, PEAK, VECTOR, BANDWIDTH = 1e-6, 1e12, 1e11, 1e9


@pytest.fixture
def cost() -> Flops:
    device = Device(launch=LAUNCH, contraction_flops=PEAK, vector_flops=VECTOR, bandwidth=BANDWIDTH)
    machine = make_machine(name="m", devices={"gpu": {"count": 1, **_fields(device)}}, link_bandwidth=1.0,
                           link_latency=0.0, transfer={})  # fmt: skip
    return Flops(name="flops", machine=machine)


def _fields(device: Device) -> dict[str, object]:
    names = ("launch", "contraction_flops", "vector_flops", "bandwidth")
    return {name: getattr(device, name) for name in names}


def price(cost: Flops, program: Program) -> float:
    graph = graph_of(program, name="g")
    shape = (1, graph.num_ops)
    return float(cost.price(Plans(graph, np.zeros(shape, np.int16), np.zeros(shape), np.zeros(shape, bool))).cost[0])


def test_an_op_takes_its_launch_and_the_longer_of_arithmetic_and_traffic(cost: Flops) -> None:
    b = ProgramBuilder()
    program = b.build(b.matmul(b.input((100, 200)), b.input((200, 300))))
    traffic = 4 * (100 * 200 + 200 * 300 + 100 * 300) / BANDWIDTH
    assert price(cost, program) == pytest.approx(LAUNCH + max(2 * 100 * 200 * 300 / PEAK, traffic))


def test_weights_and_views_are_free(cost: Flops) -> None:
    b = ProgramBuilder()
    both = b.op("concat", 1, inputs=(b.weight(8, 3), b.weight(8, 5)))
    product = b.matmul(b.input((2, 8)), both)
    alone, more = b.build(product), b.build(b.op("reshape", (16,), inputs=(product,)))
    assert price(cost, alone) == price(cost, more) == pytest.approx(LAUNCH + 4 * (16 + 64 + 16) / BANDWIDTH)


def test_shared_terms_are_paid_once(cost: Flops) -> None:
    b = ProgramBuilder()
    shared = b.op("relu", inputs=(b.input((1000,)),))
    once, twice = b.build(shared), b.build(b.op("add", inputs=(shared, shared)))
    add = LAUNCH + 4 * 3000 / BANDWIDTH
    assert price(cost, twice) == pytest.approx(price(cost, once) + add)


def test_arithmetic_is_counted_as_in_graphs() -> None:
    b = ProgramBuilder()
    x = b.conv(b.input((1, 4, 8, 8)), 8, 3, activation="relu", bias=True)
    program = b.build(b.op("tanh", inputs=(b.op("pool_max", (2, 2), (2, 2), (0, 0, 0, 0), inputs=(x,)),)))
    terms, ran = (
        program.terms,
        [t for t in program.live() if program.terms.operation[t].name not in ("input", "weight")],
    )
    found = [flop(terms.operation[t], [terms.types[i][0] for i in terms.inputs[t]], terms.types[t]) for t in ran]
    assert found == [8 * 64 * (2 * 4 * 9 + 1 + 1), 8 * 16 * 4, 8 * 16 * 16]
    assert found == graph_of(program, name="g").flops.tolist()
