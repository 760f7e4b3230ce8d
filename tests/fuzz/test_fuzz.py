"""Damaged inputs of every format end in a sentence or a right result; and the harness sees what does not."""

import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from .faults import EXPECTED, FORBIDDEN
from .formats import FORMATS
from .judge import BAD
from .mutate import Draw, damaged, gzip_bomb, json_text
from .runner import run

FEW, SOME, MANY = 1, 4, 3000
DEAR = frozenset({"checkpoint", "command", "config", "decision", "decision_draw", "graph", "outputs", "rules"})


def failures(cases: Mapping[str, int]) -> list[str]:
    found = run((name, seed) for name, count in cases.items() for seed in range(round(count * FORMATS[name].share)))
    return [f"--one {name} {seed}: {outcome}" for name, seed, outcome in found if outcome.kind in BAD]


@pytest.mark.timeout(900)
def test_damaged_inputs_end_in_a_sentence_or_a_right_result() -> None:
    """Many of every format that is read in some hundredths of a second, a few of the others, in one process that
    imports and compiles once."""
    assert failures({name: FEW if name in DEAR else SOME for name in FORMATS}) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", tuple(FORMATS))
def test_thousands_of_damaged_inputs(name: str) -> None:
    assert failures({name: MANY}) == []


# --- The harness itself.


def test_the_harness_tells_outcomes_apart() -> None:
    """Of readers with a fault each; after one of which the process dies, others are read in a new one."""
    found = run([(fault.__name__, 0) for fault in EXPECTED], formats=".faults", wall=5.0)
    assert {name: outcome.kind for name, _, outcome in found} == {f.__name__: kind for f, kind in EXPECTED.items()}
    assert not FORBIDDEN.exists()


def test_a_process_that_cannot_start_is_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"the process died \(1\); --one no such format -1 shows why"):
        list(run([("no such format", 0)], formats=".faults"))


@pytest.mark.parametrize("name", ["stg", "lifetimes", "onnx", "rules"])
def test_a_seed_makes_the_same_input_and_others_make_others(name: str, tmp_path: Path) -> None:
    def inputs() -> list[bytes]:
        return [FORMATS[name].write(Draw(name, seed), tmp_path).read_bytes() for seed in range(30)]

    assert inputs() == inputs() and len({*inputs()}) > 20


def test_damage_leaves_the_original_alone_and_is_small() -> None:
    sound = {"a": [1, 2, {"b": "x"}], "c": None}
    many = {json_text(damaged(Draw("d", seed), sound))[:200] for seed in range(200)}
    assert sound == {"a": [1, 2, {"b": "x"}], "c": None} and len(many) > 100


def test_a_bomb_is_small_until_it_is_unpacked() -> None:
    bomb = gzip_bomb(64)
    assert len(bomb) < 1 << 17
    assert len(zlib.decompressobj(-15).decompress(bomb[10:])) == 64 << 20
