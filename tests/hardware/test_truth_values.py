"""Truth values that follow no pattern are mispredicted; which ones a program has is found by running it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphopt.hardware.inductor.captured import capture_step
from graphopt.hardware.inductor.lowering import lower
from graphopt.hardware.inductor.truth_values import missed_share, missed_shares

DRAWN = torch.rand(4096, generator=torch.Generator().manual_seed(0))
PLACES = torch.arange(4096)


@pytest.mark.parametrize(("values", "share"), [
    (DRAWN > 0.5, 0.5), (DRAWN > 0.9, 0.1), (PLACES >= 0, 0.0), (PLACES < 0, 0.0), (PLACES % 2 == 0, 0.0),
    (PLACES < 1000, 0.0), (DRAWN[:2048].repeat_interleave(2) > 0.5, 0.25), (PLACES[:1] == 0, 0.0),
])  # fmt: skip
def test_a_pattern_is_guessed(values: Tensor, share: float) -> None:
    assert missed_share(values) == pytest.approx(share, abs=0.03)


def test_each_node_of_truth_values_has_its_share_on_drawn_inputs() -> None:
    def run(x: Tensor, kept: Tensor) -> list[Tensor]:
        positive, all_finite = x > 0, x < 1e9
        return [torch.where(kept & all_finite, x, 0.0), positive]

    program = capture_step(run, [torch.randn(64, 64), torch.rand(64, 64) > 0.9])
    found = missed_shares(program)
    assert found["gt"] == pytest.approx(0.5, abs=0.03) and found["lt"] == 0.0
    assert sorted(found.values())[1:-1] == pytest.approx([0.1, 0.1], abs=0.03)  # the input, and what is made of it
    features = lower(program, {}, {}).features
    written = features.get("v.missed_store", 0.0) + features.get("s.missed_store", 0.0)
    assert written == pytest.approx(64 * 64 * 0.5, rel=0.1)
    read = features.get("v.missed_load", 0.0) + features.get("s.missed_load", 0.0)
    assert read == pytest.approx(64 * 64 * 0.1, rel=0.4)


def test_nothing_is_known_of_a_program_that_cannot_run() -> None:
    program = capture_step(lambda x: [x > 0], [torch.randn(8)])
    next(node for node in program.gm.graph.nodes if node.op == "call_function").args = ()
    program.gm.recompile()
    assert missed_shares(program) == {}


def test_random_numbers_of_the_caller_stay_as_they_are() -> None:
    program = capture_step(lambda x: [torch.rand_like(x) > x], [torch.rand(64)])
    before = torch.random.get_rng_state()
    assert len(missed_shares(program)) == 1
    assert torch.equal(torch.random.get_rng_state(), before)
    assert missed_shares(replace(program, device="cuda")) == {}
