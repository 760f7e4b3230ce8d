"""Message passing: the formula written out edge by edge, and that rounds, directions and averages are what they say."""

import copy

import pytest
import torch
from small_graphs import MACHINE, chain, diamond, star
from torch import Tensor, nn

from graphopt.encoders.columns import EDGE_WIDTH, FEATURES
from graphopt.encoders.features import graph_features
from graphopt.encoders.message_passing import MessagePassing, Messages
from graphopt.encoders.messages import Edges


def make(rounds: int, *, shared: bool = False, update: str = "gru", width: int = 8) -> MessagePassing:
    torch.manual_seed(0)
    return MessagePassing(name="m", width=width, rounds=rounds, shared=shared, update=update, extra_width=0)


def message(mlp: Messages, sender: Tensor, receiver: Tensor, edge: Tensor) -> Tensor:
    """MLP([h_v, h_u, e]) as one matrix over the joined vector."""
    first = torch.cat([mlp.sender.weight, mlp.receiver.weight, mlp.edge.weight], 1)
    hidden = (first @ torch.cat([sender, receiver, edge]) + mlp.edge.bias).relu()
    return mlp.out.weight @ hidden + mlp.out.bias


def test_messages_are_the_mean_of_an_mlp_of_sender_receiver_and_edge() -> None:
    torch.manual_seed(0)
    mlp, h, attr = Messages(8), torch.randn(4, 8), torch.randn(3, EDGE_WIDTH)
    edge = nn.Linear(EDGE_WIDTH, 8)(attr)
    edges = Edges.of(torch.tensor([[1, 2, 0], [0, 0, 3]]), attr, 4)  # 1 -> 0, 2 -> 0, 0 -> 3
    got = mlp(h, edges, mlp.edge(edge))
    to_0 = (message(mlp, h[1], h[0], edge[0]) + message(mlp, h[2], h[0], edge[1])) / 2
    expected = torch.stack([to_0, torch.zeros(8), torch.zeros(8), message(mlp, h[0], h[3], edge[2])])
    assert torch.allclose(got, expected, atol=1e-6)


def test_two_rounds_written_out() -> None:
    encoder, data = make(2), graph_features(diamond(), MACHINE)
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
    data = graph_features(diamond(), MACHINE)
    assert torch.allclose(shared(data)[0], separate(data)[0], atol=1e-6)


@pytest.mark.parametrize(("update", "heard"), [("gru", 1e-4), ("mlp", 1e-8)])
@pytest.mark.parametrize("shared", [False, True])
def test_eight_rounds_reach_eight_edges_also_before_training(shared: bool, update: str, heard: float) -> None:
    encoder, data = make(8, shared=shared, update=update, width=32).double(), graph_features(chain(19), MACHINE)
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


def test_how_many_equal_readers_there_are_is_averaged_away() -> None:
    """Messages from 3 and from 3,000 equal readers are one message; only features say how many there are."""
    encoder, few, many = make(8), graph_features(star(3), MACHINE), graph_features(star(3000), MACHINE)
    many = copy.copy(many)
    many.x, many.edge_attr, many.reverse_attr = (
        torch.cat([few.x[:1], few.x[1:2].expand(3000, -1)]),
        few.edge_attr[:1].expand(3000, -1),
        few.reverse_attr[:1].expand(3000, -1),
    )
    with torch.no_grad():
        assert torch.allclose(encoder(few)[0][:2], encoder(many)[0][:2], atol=1e-4)
