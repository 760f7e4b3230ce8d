"""Tables of prices: turns, lines from before that are packed beside them, lines that do not count."""

import json
from pathlib import Path

import pytest

from graphopt.core.errors import Unreadable, UserError
from graphopt.hardware.measure.price_table import PriceTable, all_lines, is_there, pack, packed_path, tables_below


def line_of(op: str, seconds: float) -> str:
    return json.dumps({"op": op, "environment": "e", "seconds": seconds})


def test_packed_lines_count_first_and_new_ones_go_beside_them(tmp_path: Path) -> None:
    table = tmp_path / "t.jsonl"
    packed = pack(f"{line_of('a', 1.0)}\n{line_of('b', 2.0)}".encode())
    packed_path(table).write_bytes(packed)
    prices = PriceTable(table)
    with prices.turn():
        prices.add(json.loads(line_of("a", 7.0)))
        prices.add(json.loads(line_of("c", 3.0)))
    for read in (prices, PriceTable(table)):
        assert [(read.find(op, "e") or {})["seconds"] for op in "abc"] == [1.0, 2.0, 3.0]
    assert packed_path(table).read_bytes() == packed
    lines = [line_of("a", 1.0), line_of("b", 2.0), line_of("a", 7.0), line_of("c", 3.0)]
    assert all_lines(table).decode().splitlines() == lines


def test_packed_lines_are_found_where_the_table_is_named(tmp_path: Path) -> None:
    place = tmp_path / "study" / "measured.jsonl"
    assert not is_there(place) and tables_below(tmp_path) == []
    place.parent.mkdir()
    packed_path(place).write_bytes(pack(b""))
    assert is_there(place) and tables_below(tmp_path) == [place]
    place.write_text("")
    assert tables_below(tmp_path) == [place]


def test_packed_lines_are_read_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.hardware.measure.price_table.BYTES", 1000)
    packed_path(tmp_path / "t").write_bytes(pack(bytes(100_000)))
    with pytest.raises(Unreadable, match="more than"):
        PriceTable(tmp_path / "t")
    packed_path(tmp_path / "t").write_bytes(b"no gzip")
    with pytest.raises(Unreadable, match="damaged"):
        PriceTable(tmp_path / "t")


def test_the_table_gives_turns(tmp_path: Path) -> None:
    table = PriceTable(tmp_path / "ops.jsonl")
    other = PriceTable(tmp_path / "ops.jsonl")
    with table.turn():
        table.add({"op": "a", "environment": "e", "seconds": 1.0})
    assert other.find("a", "e") is None
    with other.turn():
        assert (other.find("a", "e") or {})["seconds"] == 1.0


BAD = ["NaN", "Infinity", "-1.0", "0", '"3.0"', "null", "[1.0]", "true", "1" + "0" * 400]


@pytest.mark.parametrize("seconds", BAD)
def test_a_line_that_is_no_measurement_does_not_count(tmp_path: Path, seconds: str) -> None:
    (tmp_path / "t").write_text(f'{{"op": "a", "environment": "e", "seconds": {seconds}}}\n{line_of("a", 2.0)}\n')
    with pytest.warns(UserWarning, match="1 lines cannot be read"):
        table = PriceTable(tmp_path / "t")
    assert (table.find("a", "e") or {})["seconds"] == 2.0


@pytest.mark.parametrize("line", ["[1]", "7", '"x"', '{"op": ["a"], "environment": "e", "seconds": 1.0}', "[" * 50_000,
                                  '{"op": "a", "environment": {}, "seconds": 1.0}'])  # fmt: skip
def test_a_line_of_wrong_types_does_not_count(tmp_path: Path, line: str) -> None:
    (tmp_path / "t").write_text(line + "\n")
    with pytest.warns(UserWarning, match="1 lines cannot be read"):
        assert PriceTable(tmp_path / "t").environments() == []


def test_no_part_of_a_line_counts(tmp_path: Path) -> None:
    whole = json.dumps({"op": "a", "environment": "e", "seconds": 12.5, "spread": 0.25, "blocks": 3})
    for end in range(len(whole)):
        (tmp_path / "t").write_text(whole[:end])
        assert PriceTable(tmp_path / "t").find("a", "e") is None


def test_a_table_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"), PriceTable(tmp_path / "file" / "t").turn():
        pass
