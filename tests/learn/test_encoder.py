"""Encoders: symmetries, reach, gradients and the aggregators by hand. One parametrisation over all of them."""

import copy

import pytest
import torch
from small_graphs import MACHINE, chain, diamond, loose, star
from torch import Tensor, nn

from graphopt.core.errors import ConfigError
from graphopt.learn.encoders.convolutions import GAT, GIN, Convolution, GraphSAGE, PyG
from graphopt.learn.encoders.encoder import Edges, Encoder, segment_max, segment_mean, segment_sum
from graphopt.learn.encoders.features import EDGE_WIDTH, FEATURES, batch, graph_features
from graphopt.learn.encoders.message_passing import MessagePassing, Sequence

# --- Encoders: symmetries, reach, gradients and the aggregators by hand. One parametrisation over all of them.

LAYERS = 2
ROUNDS = {
    "messages": {"update": "gru", "shared": False},
    "messages_mlp": {"update": "mlp", "shared": False},
    "messages_shared": {"update": "gru", "shared": True},
}
NAMED = {
    "ResGatedGraphConv": {},
    "GCNConv": {"normalize": False, "add_self_loops": False},
    "GATv2Conv": {"concat": False},
}
NAMES = ("gat", "gin", "mean", "max", *ROUNDS, *NAMED)  # of those that read edges
ALL = (*NAMES, "gru", "lstm")


def make(name: str, extra_width: int = 0) -> Encoder:
    torch.manual_seed(0)
    common = {"name": name, "width": 16, "extra_width": extra_width}
    if name in ROUNDS:
        return MessagePassing(rounds=LAYERS, **ROUNDS[name], **common)
    if name in ("gru", "lstm"):
        return Sequence(layers=LAYERS, cell=name, **common)
    common |= {"layers": LAYERS, "dropout": 0.0}
    if name in NAMED:
        return PyG(conv=f"torch_geometric.nn.{name}", options=NAMED[name], **common)
    if name == "gat":
        return GAT(heads=4, **common)
    return GIN(**common) if name == "gin" else GraphSAGE(aggregation=name, **common)


@pytest.mark.parametrize("name", NAMES)
def test_states_follow_the_ops_when_the_order_changes(name) -> None:
    one, other = diamond(), diamond((5, 0, 2, 1, 3, 4))
    assert one.op_names != other.op_names
    encoder = make(name)
    h, g = encoder(graph_features(one, MACHINE))
    h2, g2 = encoder(graph_features(other, MACHINE))
    moved = [other.op_names.index(op) for op in one.op_names]
    assert torch.allclose(h, h2[moved], atol=1e-5)
    assert torch.allclose(g, g2, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_equals_its_graphs_one_by_one(name) -> None:
    datas = [graph_features(g, MACHINE) for g in (diamond(), chain(1), chain(7), diamond())]
    encoder = make(name)
    h, g = encoder(batch(datas))
    alone = [encoder(data) for data in datas]
    assert torch.allclose(h, torch.cat([a[0] for a in alone]), atol=1e-5)
    assert torch.allclose(g, torch.cat([a[1] for a in alone]), atol=1e-5)
    assert g.shape == (4, encoder.width)


@pytest.mark.parametrize("name", NAMES)
def test_changes_reach_both_ways_as_far_as_there_are_layers(name) -> None:
    data, middle = graph_features(chain(9), MACHINE), 4
    changed = copy.copy(data)
    changed.x = data.x.clone()
    changed.x[middle, FEATURES.index("flops")] += 1.0
    encoder = make(name)
    difference = (encoder(data)[0] - encoder(changed)[0]).abs().amax(1)
    reached = [abs(op - middle) <= LAYERS for op in range(9)]
    assert (difference > 1e-6).tolist() == reached
    assert (difference[~torch.tensor(reached)] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_two_directions_have_their_own_weights(name) -> None:
    data = graph_features(chain(5), MACHINE)
    turned = copy.copy(data)
    turned.edge_index, turned.edge_attr = data.reverse_index, data.reverse_attr
    turned.reverse_index, turned.reverse_attr = data.edge_index, data.edge_attr
    encoder = make(name)
    assert not torch.allclose(encoder(data)[0], encoder(turned)[0], atol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_gets_a_gradient(name) -> None:
    encoder = make(name, extra_width=3)
    h, g = encoder(graph_features(diamond(), MACHINE), torch.randn(6, 3))
    ((h * torch.randn_like(h)).sum() + (g * torch.randn_like(g)).sum()).backward()
    assert [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", ALL)
def test_extra_input_is_read_and_its_width_checked(name) -> None:
    data, encoder = graph_features(diamond(), MACHINE), make(name, extra_width=2)
    assert not torch.allclose(encoder(data, torch.zeros(6, 2))[0], encoder(data, torch.ones(6, 2))[0])
    with pytest.raises(ValueError, match="width 2, got 0"):
        encoder(data)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "graph", [chain(1), loose(("relu",)), loose(), star(3000)], ids=["1", "loose1", "loose", "star"]
)
def test_single_ops_graphs_without_edges_and_thousands_of_users_stay_finite(name, graph) -> None:
    encoder = make(name)
    h, g = encoder(graph_features(graph, MACHINE))
    assert h.shape == (graph.num_ops, 16) and g.shape == (1, 16)
    ((h * torch.randn_like(h)).sum() + (g * torch.randn_like(g)).sum()).backward()
    grads = [p.grad for p in encoder.parameters() if p.grad is not None]
    assert grads and all(torch.isfinite(grad).all() for grad in [h, g, *grads])


def star_edges(senders: list[int], num_ops: int) -> Edges:
    """Edges from `senders` to op 0, with zero attributes."""
    index = torch.tensor([senders, [0] * len(senders)])
    return Edges.of(index, torch.zeros(len(senders), EDGE_WIDTH), num_ops)


def convolution(name: str, width: int) -> Convolution:
    """One of an encoder's, for one direction."""
    common = {"name": name, "width": width, "layers": 1, "dropout": 0.0, "extra_width": 0}
    encoder = GAT(heads=1, **common) if name == "gat" else GIN(**common)
    encoder = GraphSAGE(aggregation=name, **common) if name in ("mean", "max") else encoder
    return encoder.hops[0].forward_conv


def identity(conv: Convolution, *linears: str) -> Convolution:
    """Sets the named linear layers to the identity and their biases to zero."""
    with torch.no_grad():
        for name in linears:
            linear = conv.conv.get_submodule(name)
            linear.weight.copy_(torch.eye(len(linear.weight)))
            if linear.bias is not None:
                linear.bias.zero_()
    return conv


def test_aggregators_by_hand() -> None:
    h = torch.tensor([[9.0, 9.0], [1.0, 4.0], [3.0, 2.0], [7.0, 7.0]])
    edges = star_edges([1, 2], 4)
    mean = identity(convolution("mean", 2), "lin_l")(h, edges)
    largest = identity(convolution("max", 2), "lin", "lin_l")(h, edges)
    assert mean.tolist() == [[2, 3], [0, 0], [0, 0], [0, 0]]
    assert largest.tolist() == [[3, 4], [0, 0], [0, 0], [0, 0]]
    gin = identity(convolution("gin", 2), "nn.0", "nn.2")
    with torch.no_grad():
        gin.conv.eps.fill_(0.5)
        gin.conv.lin.bias.zero_()
    assert gin(h, edges).tolist() == [[17.5, 19.5], [1.5, 6.0], [4.5, 3.0], [10.5, 10.5]]


def test_attention_by_hand() -> None:
    h = torch.tensor([[0.5, -1.0], [1.0, 4.0], [-3.0, 2.0]])
    conv = identity(convolution("gat", 2), "lin_l")
    with torch.no_grad():
        conv.conv.att.copy_(torch.tensor([[[1.0, 0.5]]]))
    # leaky_relu(1.5, 3) -> 3.0; leaky_relu(-2.5, 1) -> -0.5 + 0.5 = 0
    alpha = torch.softmax(torch.tensor([3.0, 0.0]), 0)
    expected = alpha[0] * h[1] + alpha[1] * h[2]
    assert torch.allclose(conv(h, star_edges([1, 2], 3))[0], expected, atol=1e-6)


def loop_reduce(values: Tensor, edges: Edges, reduce) -> Tensor:
    rows = [values[edges.receiver == n] for n in range(len(edges.degree))]
    return torch.stack([reduce(r) if len(r) else torch.zeros(values.shape[1]) for r in rows])


def test_segments_against_plain_loops() -> None:
    torch.manual_seed(1)
    receiver = torch.randint(0, 12, (30,)).sort().values
    edges = Edges.of(torch.stack([torch.zeros_like(receiver), receiver]), torch.zeros(30, EDGE_WIDTH), 14)
    values = torch.randn(30, 5, requires_grad=True)
    for ours, reduce in (
        (segment_sum(values, edges), lambda r: r.sum(0)),
        (segment_mean(values, edges.degree), lambda r: r.mean(0)),
        (segment_max(values, edges.degree), lambda r: r.max(0).values),
    ):
        expected = loop_reduce(values, edges, reduce)
        assert torch.allclose(ours, expected, atol=1e-5)
        weight = torch.randn_like(ours)
        ours_grad, expected_grad = (torch.autograd.grad((v * weight).sum(), values)[0] for v in (ours, expected))
        assert torch.allclose(ours_grad, expected_grad, atol=1e-5)


def test_widths_that_cannot_be_shared_are_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match="multiple of 4 heads"):
        GAT(heads=4, name="x", width=10, layers=1, dropout=0.0, extra_width=0)
    with pytest.raises(ConfigError, match="width 7 is odd; make it even"):
        Sequence(name="x", width=7, layers=1, cell="gru", extra_width=0)


@pytest.mark.parametrize(
    ("conv", "options", "message"),
    [
        ("torch_geometric.nn.NothingConv", {}, "no convolution of torch_geometric.nn"),
        ("os.system", {}, "no convolution of torch_geometric.nn"),
        ("torch_geometric.nn.Linear", {}, "no convolution of torch_geometric.nn"),
        ("torch_geometric.nn.GATv2Conv", {"heads": 4}, "makes width 64 of 16"),
        ("torch_geometric.nn.GCNConv", {"head": 4}, "cannot be built from two widths"),
        ("torch_geometric.nn.GINConv", {}, "cannot be built from two widths"),
    ],
)
def test_convolutions_that_do_not_fit_are_refused(conv: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PyG(name="pyg", width=16, layers=1, dropout=0.0, conv=conv, options=options, extra_width=0)


# --- The recurrent encoder: it reads ops in order, both ways, and no edges.


def sequence(cell: str = "gru") -> Sequence:
    torch.manual_seed(0)
    return Sequence(name="s", width=8, layers=1, cell=cell, extra_width=0)


def test_a_change_reaches_every_op_of_its_graph_and_no_other_graph() -> None:
    data = batch([graph_features(chain(length), MACHINE) for length in (3, 9, 5)])
    changed = copy.copy(data)
    changed.x = data.x.clone()
    changed.x[7, FEATURES.index("flops")] += 3.0
    for cell in ("gru", "lstm"):
        encoder = sequence(cell)
        with torch.no_grad():
            difference = (encoder(data)[0] - encoder(changed)[0]).abs().amax(1)
        inside = torch.tensor([3 <= op < 12 for op in range(17)])
        assert (difference[inside] > 0).all() and (difference[~inside] == 0).all()


def test_both_directions_by_cells() -> None:
    """A loop over GRU cells with the network's weights, forwards into the first half and backwards into the second."""
    encoder, data = sequence(), graph_features(diamond(), MACHINE)
    read = encoder.read(torch.cat([encoder.kind(data.kind), data.x], 1))
    halves = []
    for suffix, ops in (("", range(6)), ("_reverse", reversed(range(6)))):
        cell, state, states = nn.GRUCell(8, 4), torch.zeros(1, 4), {}
        weights = {name: encoder.network.get_parameter(f"{name}_l0{suffix}") for name, _ in cell.named_parameters()}
        cell.load_state_dict(weights)
        for op in ops:
            states[op] = state = cell(read[op][None], state)
        halves.append(torch.cat([states[op] for op in range(6)]))
    assert torch.allclose(encoder(data)[0], torch.cat(halves, 1), atol=1e-6)
