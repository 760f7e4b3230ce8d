"""Tables whose lines from before are packed beside them."""

import json
from pathlib import Path

import pytest

from graphopt.core.errors import Unreadable
from graphopt.hardware.code_time import tables_in
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
    assert tables_in([tmp_path]) == tables_in([place]) == tables_in([packed_path(place)]) == [place]
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
