"""Features on a hand-made graph, scale, bounds, batching; and messages that carry them."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from small_graphs import MACHINE as PAIR
from small_graphs import chain, diamond, loose
from torch import Tensor

from graphopt.core.graph import MOST_WORK, Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.learn.encoders.features import (
    EDGE_FEATURES,
    EDGE_WIDTH,
    FEATURES,
    LIMIT,
    WIDTH,
    batch,
    edge_columns,
    graph_features,
    op_columns,
)
from graphopt.learn.encoders.message_passing import MessagePassing, Messages

# --- Features: what they say on a hand-made graph, scale, bounds on extreme graphs, and batching.

GPU = Device(vector_flops=1e13, contraction_flops=6e13, bandwidth=1e12, launch=1e-6)
MACHINE = Machine(name="gpu2", devices=(GPU, GPU), link_bandwidth=1e10, link_latency=1e-5)
IDEAL = Machine(name="ideal", devices=(Device(),))
XLA = Machine(name="xla", devices=(Device(fusion_model="xla_gpu", clock=1e9, cores=10, fpus_per_core=100),))


def attention_like(copies: int = 1, batch_size: int = 8) -> Graph:
    """Per copy: matmul -> reshape -> relu -> sum (output), with relu also read by an exp (output)."""
    b = GraphBuilder("small")
    for _ in range(copies):
        x, w = b.tensor((batch_size, 32)), b.tensor((32, 64), weight=True)
        y, v, r = b.tensor((batch_size, 64)), b.tensor((batch_size * 64,)), b.tensor((batch_size * 64,))
        s, e = b.tensor(()), b.tensor((batch_size * 64,))
        b.op("matmul", [x, w], [y], flops=2.0 * batch_size * 32 * 64)
        b.op("reshape", [y], [v])
        b.op("relu", [v], [r])
        b.op("sum", [r], [s])
        b.op("exp", [r], [e])
        b.output(s)
        b.output(e)
    return b.build()


def column(graph: Graph, machine: Machine, name: str) -> list[float]:
    return [round(float(v), 4) for v in graph_features(graph, machine).x[:, FEATURES.index(name)]]


def test_every_declared_feature_is_computed_and_no_other() -> None:
    graph = attention_like()
    assert sorted(op_columns(graph, MACHINE)) == sorted(FEATURES)
    assert sorted(edge_columns(graph)) == sorted(EDGE_FEATURES)
    assert len(set(FEATURES)) == WIDTH


def test_values_by_hand() -> None:
    graph = attention_like()  # matmul, reshape, relu, sum, exp
    assert column(graph, MACHINE, "single_user") == [1, 1, 0, 0, 0]
    assert column(graph, MACHINE, "users") == [0.5, 0.5, round(np.log2(3) / 2, 4), 0, 0]
    assert column(graph, MACHINE, "output") == [0, 0, 0, 1, 1]
    assert column(graph, MACHINE, "reads_weights") == [1, 0, 0, 0, 0]
    assert column(graph, MACHINE, "reads_inputs") == [1, 0, 0, 0, 0]
    assert column(graph, MACHINE, "producer_contraction") == [0, 0, 1, 0, 0]  # found through the view
    assert column(graph, MACHINE, "user_reduction") == [0, 0, 1, 0, 0]
    assert column(graph, MACHINE, "user_elements_min") == [0, 0, round(-np.log10(512) / 3, 4), 0, 0]
    assert column(graph, MACHINE, "user_elements_max") == [0, 0, 0, 0, 0]
    assert column(graph, MACHINE, "expands")[3] == round(-np.log10(512) / 3, 4)
    assert column(graph, MACHINE, "depth") == [0, 0.5, 0.5, 1, 1]  # the view adds no step
    assert column(graph, MACHINE, "height") == [1, 1, 0.5, 0, 0]
    assert column(graph, MACHINE, "slack") == [0, 0, 0, 0, 0]
    assert column(graph, MACHINE, "dim_1") == [0.75, 1.125, 1.125, 0, 1.125]
    assert column(graph, MACHINE, "dim_2") == [0.375, 0, 0, 0, 0]


def test_times_by_hand() -> None:
    x = column(attention_like(), MACHINE, "compute_time")
    assert x[0] == round(np.log10(2 * 8 * 32 * 64 / 6e13 / 1e-6 + 1e-2) / 2, 4)
    assert x[2] == round(np.log10(512 / 1e13 / 1e-6 + 1e-2) / 2, 4)
    memory = column(attention_like(), MACHINE, "memory_time")
    assert memory[2] == round(np.log10(2 * 2048 / 1e12 / 1e-6 + 1e-2) / 2, 4)
    assert memory[1] == -1  # a view moves nothing
    assert column(attention_like(), MACHINE, "transfer_time")[2] == round(
        np.log10((2048 / 1e10 + 1e-5) / 1e-6 + 1e-2) / 2, 4
    )
    xla = column(attention_like(), XLA, "compute_time")  # without a launch overhead the mean op time is the unit
    seconds = attention_like().flops / 2e12
    assert xla[0] == round(np.log10(seconds[0] / seconds.mean() + 1e-2) / 2, 4)


def test_a_slower_device_shows_in_the_spread() -> None:
    slow = Device(vector_flops=1e11, contraction_flops=6e11, bandwidth=1e10, launch=1e-6)
    assert max(column(attention_like(), MACHINE, "device_spread")) == 0
    machine = Machine(name="both", devices=(GPU, slow))
    assert min(column(attention_like(), machine, "device_spread")) >= 0
    assert max(column(attention_like(), machine, "device_spread")) > 0


def test_edges_by_hand() -> None:
    data = graph_features(attention_like(), MACHINE)
    assert data.edge_index.tolist() == [[0, 1, 2, 2], [1, 2, 3, 4]]
    assert data.reverse_index.tolist() == [[1, 2, 3, 4], [0, 1, 2, 2]]
    same, view = EDGE_FEATURES.index("same_shape"), EDGE_FEATURES.index("from_view")
    assert data.edge_attr[:, same].tolist() == [0, 1, 0, 1]
    assert data.edge_attr[:, view].tolist() == [0, 1, 0, 0]
    assert data.edge_attr.shape == (4, EDGE_WIDTH)


def test_equal_sizes_in_another_order_are_another_shape() -> None:
    b = GraphBuilder("turn")
    x, y, z = b.tensor((4, 6)), b.tensor((6, 4)), b.tensor((4, 6))
    b.op("relu", [x], [z])
    b.op("transpose", [z], [y])
    b.output(y)
    assert graph_features(b.build(), IDEAL).edge_attr[0, EDGE_FEATURES.index("same_shape")] == 0


def test_reverse_edges_carry_the_attributes_of_their_edges() -> None:
    data = graph_features(attention_like(copies=3), MACHINE)
    forward = {(s, t): a for s, t, a in zip(*data.edge_index.tolist(), data.edge_attr.tolist())}
    backward = {(t, s): a for s, t, a in zip(*data.reverse_index.tolist(), data.reverse_attr.tolist())}
    assert forward == backward
    for index in (data.edge_index, data.reverse_index):
        assert (index[1].diff() >= 0).all()


def test_a_graph_twice_looks_like_the_graph_once() -> None:
    once, many = graph_features(attention_like(1), MACHINE).x, graph_features(attention_like(40), MACHINE).x
    assert torch.allclose(many, once.repeat(40, 1), atol=1e-5)


def test_a_larger_batch_keeps_what_is_relative_to_the_graph() -> None:
    b = [GraphBuilder(str(n)) for n in (8, 8000)]
    for builder, n in zip(b, (8, 8000)):
        x, y, z = builder.tensor((n, 4)), builder.tensor((n, 16)), builder.tensor((n, 16))
        builder.op("broadcast", [x], [y])
        builder.op("relu", [y], [z])
        builder.output(z)
    for name in ("result_bytes_relative", "elements_relative", "expands", "result_bytes_of_largest", "depth", "users"):
        assert column(b[0].build(), IDEAL, name) == column(b[1].build(), IDEAL, name)


def single_op() -> Graph:
    b = GraphBuilder("single")
    b.op("opaque", [], [])
    return b.build()


def zero_bytes() -> Graph:
    b = GraphBuilder("zero")
    x, y = b.tensor((0, 5)), b.tensor((0, 5))
    b.op("relu", [x], [y])
    b.op("reshape", [], [b.tensor((0,))])
    b.op("sum", [y, y], [b.tensor(())])
    return b.build()


def huge() -> Graph:
    """As large as a graph may be: all its tensors together take at most 2^53 bytes, an op at most so many FLOP."""
    b = GraphBuilder("huge")
    x = b.tensor((2**24, 2**23), num_bytes=2**49)
    for _ in range(5):
        y = b.tensor((2**24, 2**23), num_bytes=2**49)
        b.op("matmul", [x, x], [y, b.tensor((2**24, 2**23), num_bytes=2**49)], flops=MOST_WORK)
        x = y
    return b.build()


def all_views() -> Graph:
    b = GraphBuilder("views")
    x = b.tensor((3,))
    for _ in range(6):
        y = b.tensor((3,))
        b.op("reshape", [x], [y])
        x = y
    b.output(x)
    return b.build()


@pytest.mark.parametrize("machine", [MACHINE, IDEAL, XLA], ids=lambda m: m.name)
@pytest.mark.parametrize("make", [single_op, zero_bytes, huge, loose, all_views], ids=lambda f: f.__name__)
def test_extreme_graphs_stay_finite_and_bounded(make, machine) -> None:
    data = graph_features(make(), machine)
    assert data.x.dtype == data.edge_attr.dtype == torch.float32
    for values in (data.x, data.edge_attr, data.reverse_attr):
        assert torch.isfinite(values).all()
        assert values.abs().max() <= LIMIT if values.numel() else True
    assert data.x.shape == (make().num_ops, WIDTH)
    assert data.edge_attr.shape == (data.edge_index.shape[1], EDGE_WIDTH)


def test_batches_shift_both_indices_and_stay_sorted() -> None:
    graphs = [attention_like(), single_op(), attention_like(2)]
    joined = batch([graph_features(g, MACHINE) for g in graphs])
    n = [g.num_ops for g in graphs]
    assert joined.num_ops.tolist() == n
    last = graph_features(graphs[2], MACHINE)
    for key in ("edge_index", "reverse_index"):
        index = getattr(joined, key)
        assert torch.equal(index[:, -last[key].shape[1] :], last[key] + n[0] + n[1])
        assert (index[1].diff() >= 0).all()


def test_features_are_kept_per_graph_and_machine_and_die_with_the_graph() -> None:
    graph = attention_like()
    first = graph_features(graph, MACHINE)
    assert graph_features(graph, MACHINE).x.data_ptr() == first.x.data_ptr()
    assert not torch.equal(graph_features(graph, IDEAL).x, first.x)
    first.x = first.x + 1  # a caller's copy may be changed
    assert not torch.equal(graph_features(graph, MACHINE).x, first.x)
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


# --- Message passing: the formula written out edge by edge, and that rounds, directions and averages are what they
# say.


def make(rounds: int, *, shared: bool = False, update: str = "gru", width: int = 8) -> MessagePassing:
    torch.manual_seed(0)
    return MessagePassing(name="m", width=width, rounds=rounds, shared=shared, update=update, extra_width=0)


def message(mlp: Messages, sender: Tensor, receiver: Tensor, edge: Tensor) -> Tensor:
    """MLP([h_v, h_u, e]) as one matrix over the joined vector."""
    first = torch.cat([mlp.sender.weight, mlp.receiver.weight, mlp.edge.weight], 1)
    hidden = (first @ torch.cat([sender, receiver, edge]) + mlp.edge.bias).relu()
    return mlp.out.weight @ hidden + mlp.out.bias


def test_two_rounds_written_out() -> None:
    encoder, data = make(2), graph_features(diamond(), PAIR)
    h = encoder.read(torch.cat([encoder.kind(data.kind), data.x], 1))
    edge = encoder.edge(data.edge_attr)
    pairs = list(zip(*data.edge_index.tolist(), edge))
    for step in encoder.steps:
        rows = []
        for op in range(6):
            down = [message(step.down, h[v], h[u], e) for v, u, e in pairs if u == op]
            up = [message(step.up, h[u], h[v], e) for v, u, e in pairs if v == op]
            parts = [torch.stack(m).mean(0) if m else torch.zeros(8) for m in (down, up)]
            rows.append(step.update.cell(torch.cat(parts)[None], h[op][None])[0])
        h = torch.stack(rows)
    assert torch.allclose(encoder(data)[0], h, atol=1e-5)


def test_shared_weights_are_separate_ones_that_are_equal() -> None:
    shared, separate = make(3, shared=True), make(3)
    assert len(shared.steps) == 1 and len(separate.steps) == 3
    for name in ("kind", "read", "pool", "edge"):
        separate.get_submodule(name).load_state_dict(shared.get_submodule(name).state_dict())
    for step in separate.steps:
        step.load_state_dict(shared.steps[0].state_dict())
    data = graph_features(diamond(), PAIR)
    assert torch.allclose(shared(data)[0], separate(data)[0], atol=1e-6)


@pytest.mark.parametrize(("update", "heard"), [("gru", 1e-4), ("mlp", 1e-8)])
@pytest.mark.parametrize("shared", [False, True])
def test_eight_rounds_reach_eight_edges_also_before_training(shared: bool, update: str, heard: float) -> None:
    encoder, data = make(8, shared=shared, update=update, width=32).double(), graph_features(chain(19), PAIR)
    for key in ("x", "edge_attr", "reverse_attr"):
        data[key] = data[key].double()
    changed = copy.copy(data)
    changed.x = data.x.clone()
    changed.x[9, FEATURES.index("flops")] += 1.0
    with torch.no_grad():
        difference = (encoder(data)[0] - encoder(changed)[0]).norm(dim=1)
    reached = torch.tensor([abs(op - 9) <= 8 for op in range(19)])
    assert (difference[~reached] == 0).all()
    assert (difference[reached] > heard * difference[9]).all()
