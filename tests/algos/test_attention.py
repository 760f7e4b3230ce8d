"""Segment-recurrent attention against a loop over ops, and what may not depend on what."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphopt.algos.attention import SegmentAttention, Segments

SIZES = st.lists(st.integers(1, 11), min_size=1, max_size=5)
WIDTH, HEADS, SEGMENT = 8, 2, 4


def layer(seed: int = 0) -> SegmentAttention:
    torch.manual_seed(seed)
    return SegmentAttention(WIDTH, HEADS).double()


def states(sizes: list[int], seed: int = 1) -> Tensor:
    return torch.randn(sum(sizes), WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def segments(sizes: list[int], size: int = SEGMENT) -> Segments:
    return Segments.of(torch.tensor(sizes), size)


def starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def by_loop(net: SegmentAttention, x_ND: Tensor, sizes: list[int]) -> Tensor:
    """Op by op, head by head: softmax(q k / sqrt(width of a head)) over the op's segment and the one before."""
    h_ND, each = net.norm(x_ND), WIDTH // HEADS
    query, (key, value) = net.query(h_ND), net.key_value(h_ND).chunk(2, -1)
    rows = []
    for start, size in zip(starts(sizes), sizes, strict=True):
        for at in range(size):
            first = max(0, at // SEGMENT - 1) * SEGMENT
            last = min(size, (at // SEGMENT + 1) * SEGMENT)
            seen = torch.arange(start + first, start + last)
            parts = []
            for head in range(HEADS):
                part = slice(head * each, (head + 1) * each)
                score = key[seen, part] @ query[start + at, part] / each**0.5
                parts.append(torch.softmax(score, 0) @ value[seen, part])
            rows.append(torch.cat(parts))
    x_ND = x_ND + net.out(torch.stack(rows))
    return x_ND + net.feed(net.feed_norm(x_ND))


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES)
def test_equal_to_a_loop(sizes: list[int]) -> None:
    net, x_ND = layer(), states(sizes)
    torch.testing.assert_close(net(x_ND, segments(sizes)), by_loop(net, x_ND, sizes))


@settings(max_examples=50, deadline=None)
@given(sizes=SIZES, size=st.integers(1, 6))
def test_segments_cut_every_graph_into_full_pieces_and_a_rest(sizes: list[int], size: int) -> None:
    cut = segments(sizes, size)
    expected = [min(size, n - i) for n in sizes for i in range(0, n, size)]
    assert cut.filled.sum(1).tolist() == expected
    assert torch.equal(cut.filled.flatten().nonzero()[:, 0], cut.row)  # ops in order, each in one place
    assert cut.first.tolist() == [i == 0 for n in sizes for i in range(0, n, size)]
    assert cut.before.tolist() == [p - (not first) for p, first in enumerate(cut.first.tolist())]


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_graphs_of_a_batch_never_mix(sizes: list[int], data: st.DataObject) -> None:
    """A graph's result alone is its result in any batch, whatever the others hold and in whatever order they come."""
    net, x_ND = layer(), states(sizes)
    out = net(x_ND, segments(sizes)).split(sizes)
    order = data.draw(st.permutations(range(len(sizes))))
    shuffled = torch.cat([x_ND.split(sizes)[i] for i in order])
    again = net(shuffled, segments([sizes[i] for i in order])).split([sizes[i] for i in order])
    for place, i in enumerate(order):
        torch.testing.assert_close(again[place], out[i])
        torch.testing.assert_close(net(x_ND.split(sizes)[i], segments([sizes[i]])), out[i])


def test_no_gradient_goes_through_the_segment_before() -> None:
    """Its states are read (the result changes with them) but taken as given."""
    net, sizes = layer(), [3 * SEGMENT]
    x_ND = states(sizes).requires_grad_()
    out = net(x_ND, segments(sizes))
    middle = slice(SEGMENT, 2 * SEGMENT)
    (gradient,) = torch.autograd.grad(out[middle].sum(), x_ND)
    assert gradient[middle].abs().min() > 0
    assert gradient[:SEGMENT].abs().max() == gradient[2 * SEGMENT :].abs().max() == 0
    moved = x_ND.detach().clone()
    moved[0] *= -1
    changed = (net(moved, segments(sizes)) - out).abs().amax(1)
    assert changed[: 2 * SEGMENT].min() > 0
    assert changed[2 * SEGMENT :].max() == 0


def test_order_within_a_segment_is_not_seen() -> None:
    """No positional encoding."""
    net, x_ND = layer(), states([2 * SEGMENT])
    order = torch.tensor([2, 0, 3, 1, 4, 7, 6, 5])
    cut = segments([2 * SEGMENT])
    torch.testing.assert_close(net(x_ND[order], cut), net(x_ND, cut)[order])


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width 6 is not a multiple of heads 4"):
        SegmentAttention(6, 4)
