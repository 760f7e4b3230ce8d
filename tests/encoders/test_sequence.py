"""The recurrent encoder: it reads ops in order, both ways, and no edges."""

import copy

import torch
from small_graphs import MACHINE, chain, diamond
from torch import nn

from graphopt.encoders.columns import FEATURES
from graphopt.encoders.features import batch, graph_features
from graphopt.encoders.sequence import Sequence


def make(cell: str = "gru") -> Sequence:
    torch.manual_seed(0)
    return Sequence(name="s", width=8, layers=1, cell=cell, extra_width=0)


def test_the_order_of_ops_matters() -> None:
    one, other = diamond(), diamond((5, 0, 2, 1, 3, 4))
    moved = [other.op_names.index(op) for op in one.op_names]
    h, g = make()(graph_features(one, MACHINE))
    h2, g2 = make()(graph_features(other, MACHINE))
    assert not torch.allclose(h, h2[moved], atol=1e-3) and not torch.allclose(g, g2, atol=1e-3)


def test_edges_are_not_read() -> None:
    data = graph_features(diamond(), MACHINE)
    cut = copy.copy(data)
    cut.edge_index, cut.edge_attr = data.edge_index[:, :0], data.edge_attr[:0]
    cut.reverse_index, cut.reverse_attr = data.reverse_index[:, :0], data.reverse_attr[:0]
    assert torch.equal(make()(data)[0], make()(cut)[0])


def test_a_change_reaches_every_op_of_its_graph_and_no_other_graph() -> None:
    data = batch([graph_features(chain(length), MACHINE) for length in (3, 9, 5)])
    changed = copy.copy(data)
    changed.x = data.x.clone()
    changed.x[7, FEATURES.index("flops")] += 3.0
    for cell in ("gru", "lstm"):
        encoder = make(cell)
        with torch.no_grad():
            difference = (encoder(data)[0] - encoder(changed)[0]).abs().amax(1)
        inside = torch.tensor([3 <= op < 12 for op in range(17)])
        assert (difference[inside] > 0).all() and (difference[~inside] == 0).all()


def test_both_directions_by_cells() -> None:
    """A loop over GRU cells with the network's weights, forwards into the first half and backwards into the second."""
    encoder, data = make(), graph_features(diamond(), MACHINE)
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
