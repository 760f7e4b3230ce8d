"""The command that extracts: what it prints, in which words, and what it refuses."""

import json
from pathlib import Path

import pytest
from random_egraphs import least

from graphopt.rewrite import extract
from graphopt.rewrite.egraphs.egraph import Enode, egraph_of, read_egraph, write_egraph

ENDLESS = egraph_of([Enode("f", ["a"], "a", 1.0)], ["a"])
SHARED = egraph_of(
    [Enode("pair", ["l", "r"], "root", 0.0)]
    + [Enode("alone", [], side, 10.0) for side in "lr"]
    + [Enode("split", ["wide"], side, 1.0) for side in "lr"]
    + [Enode("wide", [], "wide", 12.0)],
    ["root"],
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shared.json.gz"
    write_egraph(SHARED, path)
    return path


def test_a_table_says_what_was_minimised(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert extract.main([str(file), str(file), "--method", "all"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("shared.json.gz")]
    expected = [
        ["greedy-tree", "tree", "4", "6", "20", "20", "20", "yes"],
        ["greedy-dag", "DAG", "4", "6", "20", "20", "0", "no"],
        ["exact", "DAG", "4", "6", "26", "14", "14", "yes"],
    ]
    assert [row[1:-1] for row in rows] == expected * 2 and least(SHARED) == (20.0, 14.0)
    assert "greedy-tree minimises the tree cost" in out and "exact minimises the DAG cost" in out


def test_lines_of_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert extract.main([str(file), "--json", "--seconds", "5"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line.pop("seconds") < 5
    assert line == {"file": str(file), "classes": 4, "nodes": 6, "method": "exact", "minimises": "DAG",
                    "tree_cost": 26.0, "dag_cost": 14.0, "bound": 14.0, "proven": True}  # fmt: skip


def test_costs_that_no_number_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [Enode("+", [n + 1, n + 1], n, 1.0) for n in range(1100)]
    write_egraph(egraph_of([*nodes, Enode("x", [], 1100, 1.0)], [0]), tmp_path / "deep.json")
    assert extract.main([str(tmp_path / "deep.json"), "--json"]) == 0
    line = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert line["tree_cost"] is None and line["dag_cost"] == 1101.0


@pytest.mark.parametrize(("text", "what"), [("{}", "no 'nodes'"), ("", "no JSON")])
def test_bad_files_are_named_before_anything_is_done(
    file: Path, text: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = file.with_name("bad.json")
    bad.write_text(text)
    with pytest.raises(SystemExit) as ended:
        extract.main([str(file), str(bad), "--json"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == "" and said.err.startswith(str(bad)) and what in said.err


def test_egraphs_without_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_egraph(ENDLESS, tmp_path / "endless.json")
    assert read_egraph(tmp_path / "endless.json").nodes == 1
    with pytest.raises(SystemExit) as ended:
        extract.main([str(tmp_path / "endless.json")])
    assert ended.value.code == 2 and "endless.json: root class 'a' has no finite term" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--method", "best"], ["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "x"]])
def test_words_without_meaning(file: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        extract.main([str(file), *words])
    assert ended.value.code == 2 and words[1] in capsys.readouterr().err
