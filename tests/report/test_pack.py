"""Packed studies: what they say is what the loose files said, they are read in place, and they are data."""

import gzip
import json
import lzma
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import command
from test_rewriting import write_model

import graphopt
from graphopt import load as load_answer
from graphopt.core.errors import DecisionError, Unreadable, UserError
from graphopt.core.utils.limits import MIB, read_member, read_npz
from graphopt.graphs.readers.formats.graph_files import parse_graph
from graphopt.report.command import main as report
from graphopt.report.decision import main as decision
from graphopt.report.pack import pack, unpack
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.run.records import packed
from graphopt.run.records.answer_file import load, read_answer

WORDS = {
    "placed": ["-m", "task=placement_scheduling", "algo=brkga,random", "machine=gpu2",
               "dataset=synthetic", "dataset.families=[layered]",
               "dataset.ops=[12]", "dataset.test=2", "dataset.train=1", "dataset.val=1", "budget.evals=[0,6,12]",
               "cost.objective=peak_memory", "judge.objective=peak_memory", "compare=[heft]", "logger=none"],
    "rewritten": ["task=rewrite", "algo=rewrite_greedy", "cost=flops", "cost@judge=flops", "budget.evals=[200]",
                  "logger=none", "dataset=onnx"],
}  # fmt: skip

MEASURED = '{"op": "a", "environment": "e", "seconds": 2.0}\n' * 50


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """(loose, packed) folder of a study with random keys, and of one of rewritten programs."""
    found = {}
    for name, words in WORDS.items():
        place = tmp_path_factory.mktemp(name)
        sweep = words[0] == "-m"
        model = [] if sweep else [f"dataset.path={write_model(place / 'model.onnx')}"]
        ran = command(place, *words[sweep:], f"study={name}", *model, sweep=sweep)
        assert ran.code == 0, ran.err
        (place / name / "about.md").write_text("what it is\n")
        (place / name / "appendix.md").write_text("| a |\n|---|\n")
        (place / name / "table.csv").write_text("a\n")
        (place / name / "measured.jsonl").write_text(MEASURED)
        pack(place / name, place / "small" / name)
        found[name] = place / name, place / "small" / name
    return found


@pytest.fixture(params=sorted(WORDS))
def both(request: pytest.FixtureRequest, studies: dict[str, tuple[Path, Path]]) -> tuple[Path, Path]:
    return studies[request.param]


@pytest.fixture
def small(studies: dict[str, tuple[Path, Path]], tmp_path: Path) -> Path:
    """A packed study of its own, to be damaged."""
    return Path(shutil.copytree(studies["placed"][1], tmp_path / "damaged"))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def answers(folder: Path) -> list[Path]:
    return [packed.path_of(folder / packed.NAME, digest) for digest in packed.digests(folder / packed.NAME)]


def loose_answers(folder: Path) -> list[tuple[Any, dict[str, tuple[Any, ...]]]]:
    """Header and arrays of every decision file by numpy's own reader."""
    found = []
    for file in sorted(folder.rglob("decisions/*.npz")):
        with np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files if name != "header"}
            found.append((json.loads(stored["header"].tobytes()), spelled(arrays)))
    return found


def spelled(arrays: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def test_every_answer_is_what_the_loose_file_says(both: tuple[Path, Path]) -> None:
    loose, small = both
    read = [(header, spelled(arrays)) for header, arrays in map(read_answer, answers(small))]
    expected = loose_answers(loose)
    assert expected and all(answer in expected for answer in read) and all(answer in read for answer in expected)
    assert len(read) == len({repr(answer) for answer in expected})  # two cells that compare with one method, say


def test_a_pack_is_a_few_files_and_holds_each_part_once(both: tuple[Path, Path]) -> None:
    loose, small = both
    assert {"README.md", "answers.zip", "rows.jsonl.xz", "measured.jsonl.gz"} == {*tree(small)}
    assert gzip.decompress((small / "measured.jsonl.gz").read_bytes()).decode() == MEASURED
    assert (small / "README.md").read_text() == "what it is\n\n| a |\n|---|\n"
    with zipfile.ZipFile(small / packed.NAME) as archive:
        groups = [name for name in archive.namelist() if name.endswith(".bin.xz")]
        assert len([n for n in archive.namelist() if n.startswith("graphs/")]) == len(groups)
        content = {name: lzma.decompress(archive.read(name)) for name in groups}
    for header, arrays in loose_answers(loose):
        for _, _, array in arrays.values():
            if len(array) > 60:  # long enough to be there by no chance
                assert content[f"answers/{header['graph']['hash']}.bin.xz"].count(array) == 1


def test_tables_and_replay_say_the_same(both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for folder in both:
        before = tree(folder)
        assert report([str(folder), "--replay"]) == 0
        said.append(capsys.readouterr().out.splitlines())
        assert tree(folder) == before
    loose, small = said
    assert loose[:-1] == small[:-1] and "decisions replay" in loose[-1]
    count = len(answers(both[1]))
    assert small[-1] == f"{count} of {count} decisions replay"


def test_graphs_may_lie_in_the_folder_above(small: Path, tmp_path: Path) -> None:
    """As studies share them: answers replay, and the loose study has its graphs again."""
    parts: dict[str, bytes] = {}
    rewrite(small, lambda own: parts.update({n: own.pop(n) for n in [*own] if n.startswith("graphs/")}))
    with zipfile.ZipFile(tmp_path / packed.NAME, "w") as archive:
        for name, content in {packed.INDEX: json.dumps({"format": packed.FORMAT, "answers": {}}), **parts}.items():
            archive.writestr(name, content)
    assert report([str(small), "--replay"]) == 0
    unpack(small, tmp_path / "loose")
    assert {f"graphs/{file.name}" for file in (tmp_path / "loose" / "graphs").iterdir()} == {*parts}


def test_unpacked_it_is_the_study_again(both: tuple[Path, Path], tmp_path: Path) -> None:
    loose, small = both
    unpack(small, tmp_path / "again")
    before, again = tree(loose), tree(tmp_path / "again")
    kept = {name for name in before if not name.startswith(".") and "/models/" not in name and "multirun" not in name}
    kept -= {"about.md", "appendix.md", "table.csv"}
    assert {*again} == kept | {"README.md"} and again["README.md"] == tree(small)["README.md"]
    different = {name for name in kept if before[name] != again[name]}
    assert all("/decisions/" in name for name in different)  # the archive may be written otherwise
    assert loose_answers(loose) == loose_answers(tmp_path / "again")


def test_commands_take_an_answer_of_a_pack(
    studies: dict[str, tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = studies["placed"][1]
    files = [file for file in answers(small) if load(file).described]
    first = next(file for file in files if len(load(file).changed()))
    short = first.with_name(first.name[: len("answers.zip#") + 8])
    for verb in ("show", "replay", "bisect"):
        assert decision([verb, str(short)]) == 0, capsys.readouterr().err
    same = [f for f in files if load(f).header["graph"] == load(first).header["graph"] and f != first]
    capsys.readouterr()
    assert decision(["diff", str(first), str(same[0])]) == 0
    assert first.name.partition("#")[2] in capsys.readouterr().out
    assert decision(["draw", str(first), "-o", str(tmp_path / "pictures")]) == 0
    drawn = [file.name for file in (tmp_path / "pictures").iterdir()]
    assert drawn and all(name.startswith(first.name.partition("#")[2]) for name in drawn)
    copy = Path(shutil.copytree(small, tmp_path / "copy"))
    op = load(first).op_names[int(load(first).changed()[0])]
    assert decision(["veto", str(copy / first.name), op, "-o", str(tmp_path / "elsewhere" / "edited.npz")]) == 0
    assert decision(["replay", str(tmp_path / "elsewhere" / "edited.npz")]) == 0  # its graph is inside


def test_an_answer_leaves_its_pack(studies: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    for name, (_, small) in studies.items():
        file = answers(small)[-1]
        graphopt.load(file).save(tmp_path / name / "alone.npz")
        header, arrays = read_answer(tmp_path / name / "alone.npz")
        assert parse_graph(arrays.pop("graph").tobytes(), "inside").hash == header["graph"]["hash"]
        assert (header, spelled(arrays)) == (read_answer(file)[0], spelled(read_answer(file)[1]))
        assert graphopt.load(tmp_path / name / "alone.npz").check() == []


def test_rows_of_two_cells_that_look_alike_stay_two(tmp_path: Path) -> None:
    rows = [{"cell": cell, "algo": "a", "graph": "g", "status": "ok", "judged": price}
            for cell, price in (("one", 1.0), ("one", 2.0), ("two", 3.0))]  # fmt: skip
    rows += [{"cell": "two", "graph": "", "status": "failed"}, {"cell": "three", "graph": "", "status": "failed"}]
    rows += [{"cell": "two", "algo": "b", "graph": "g", "status": "ok", "judged": 4.0}]
    (tmp_path / "rows.jsonl.xz").write_bytes(lzma.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    found = [(row["cell"], row.get("judged")) for row in read_rows(row_files(tmp_path))[0]]
    assert found == [("one", 2.0), ("two", 3.0), ("two", 4.0), ("three", None)]


def lose_an_answer(study: Path) -> None:
    next(study.rglob("decisions/*.npz")).unlink()


def damage_an_answer(study: Path) -> None:
    file = next(study.rglob("decisions/*.npz"))
    file.write_bytes(file.read_bytes()[:-100])


def cut_a_row(study: Path) -> None:
    with next(study.rglob("rows.jsonl")).open("a") as file:
        file.write('{"study": ')


@pytest.mark.parametrize("harm", [lose_an_answer, damage_an_answer, cut_a_row, shutil.rmtree])
def test_what_would_not_come_back_is_not_packed(
    studies: dict[str, tuple[Path, Path]], tmp_path: Path, harm: Callable[[Path], Any]
) -> None:
    study = Path(shutil.copytree(studies["placed"][0], tmp_path / "study"))
    harm(study)
    with pytest.raises(UserError):
        pack(study, tmp_path / "small")
    assert [path for path in tmp_path.iterdir() if path != study] == []


def test_what_is_there_is_not_replaced(studies: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for action, study in zip((pack, unpack), studies["placed"], strict=True):
        with pytest.raises(UserError, match="exists: give a folder that is not there yet"):
            action(study, tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def rewrite(folder: Path, change: Callable[[dict[str, bytes]], Any]) -> None:
    """The pack with its parts changed, checked by nobody; answers not compressed by LZMA, as older packs hold them."""
    with zipfile.ZipFile(folder / packed.NAME) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts = {n.removesuffix(".xz"): lzma.decompress(c) if n.endswith(".xz") else c for n, c in parts.items()}
    change(parts)
    with zipfile.ZipFile(folder / packed.NAME, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def first_json(parts: dict[str, bytes], change: Callable[[Any], Any]) -> None:
    name = min(name for name in parts if name.startswith("answers/") and name.endswith(".json"))
    said = json.loads(parts[name])
    change(said)
    parts[name] = json.dumps(said).encode()


def flip(parts: dict[str, bytes]) -> None:
    """Another decision in every array of one graph."""
    name = min(name for name in parts if name.startswith("answers/") and name.endswith(".bin"))
    parts[name] = bytes(byte ^ 1 for byte in parts[name])


def lower_a_price(parts: dict[str, bytes]) -> None:
    def change(said: Any) -> None:
        prices = next(value for value in said["values"] if isinstance(value, dict) and "judged" in value)
        prices["judged"] *= 0.9

    first_json(parts, change)


DAMAGE: dict[str, Callable[[dict[str, bytes]], Any]] = {
    "decisions": flip,
    "a price": lower_a_price,
    "no arrays": lambda parts: first_json(parts, lambda said: said.pop("arrays")),
    "a huge array": lambda parts: first_json(parts, lambda said: said["arrays"][0].__setitem__(1, [10**15])),
    "a negative array": lambda parts: first_json(parts, lambda said: said["arrays"][0].__setitem__(1, [-4])),
    "pickles": lambda parts: first_json(parts, lambda said: said["arrays"][0].__setitem__(0, "|O")),
    "a type of many": lambda parts: first_json(parts, lambda said: said["arrays"][0].__setitem__(0, "99999999f8")),
    "no type": lambda parts: first_json(parts, lambda said: said["arrays"][0].__setitem__(0, 7)),
    "places": lambda parts: first_json(parts, lambda said: [a.update(arrays={"x": 10**9}) for a in
                                                            said["answers"].values()]),
    "a list of answers": lambda parts: first_json(parts, lambda said: said.update(answers=[])),
    "no LZMA": lambda parts: parts.update({max(n for n in parts if n.startswith("answers/")) + ".xz": b"\xff"}),
    "no json": lambda parts: parts.update({min(n for n in parts if n.startswith("answers/")
                                               and n.endswith(".json")): b"\xff"}),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_answers_are_named_and_the_others_replay(
    small: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    total = len(answers(small))
    rewrite(small, DAMAGE[damage])
    assert report([str(small), "--replay"]) == 1
    lines = capsys.readouterr().out.splitlines()
    good, of = (int(word) for word in lines[-1].replace(",", "").split() if word.isdigit())
    assert of == total and 0 < good < total
    named = [line for line in lines if line.startswith(f"{small.resolve()}/answers.zip#")]
    assert len(named) == total - good


@pytest.mark.parametrize("content", [b"", b"no archive", b'{"format": "graphopt pack 99", "answers": {}}', b"[]"])
def test_a_pack_that_is_none(small: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    if content.startswith((b"{", b"[")):
        rewrite(small, lambda parts: parts.update({packed.INDEX: content}))
    else:
        (small / packed.NAME).write_bytes(content)
    assert report([str(small), "--replay"]) == 1
    assert "0 of " in capsys.readouterr().out
    assert decision(["show", str(small / "answers.zip#0123abcd")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def rename_all(part: str, digest: str) -> Callable[[dict[str, bytes]], None]:
    """Every answer that the index, or the list of files, names gets the digest."""

    def change(parts: dict[str, bytes]) -> None:
        said = json.loads(parts[part])
        named = {digest: "0"} if part == packed.INDEX else dict.fromkeys(said, digest)
        parts[part] = json.dumps(said | {"answers": named} if part == packed.INDEX else named).encode()

    return change


@pytest.mark.parametrize("part", [packed.INDEX, packed.NAMES])
@pytest.mark.parametrize("digest", ["0123/../../x", "", "no digest", "/tmp/x"])
def test_what_is_no_digest_becomes_no_path(small: Path, tmp_path: Path, part: str, digest: str) -> None:
    rewrite(small, rename_all(part, digest))
    with pytest.raises(UserError, match="is damaged"):
        unpack(small, tmp_path / "mine")


def test_a_pack_without_names_is_damaged(small: Path, tmp_path: Path) -> None:
    rewrite(small, lambda parts: parts.pop(packed.NAMES))
    with pytest.raises(UserError, match=r"is damaged \(it has no names.json\)"):
        unpack(small, tmp_path / "mine")


@pytest.mark.parametrize("digest", ["", "a", "ffffffff", "..", "[", "0" * 2000])
def test_an_answer_that_is_not_there(small: Path, digest: str) -> None:
    with pytest.raises((DecisionError, OSError)):
        read_answer(packed.path_of(small / packed.NAME, digest))


def test_a_lost_graph_is_made_again_and_another_is_refused(small: Path) -> None:
    def swap(parts: dict[str, bytes]) -> None:
        one, other = [name for name in parts if name.startswith("graphs/")]
        parts[one] = parts[other]

    rewrite(small, swap)
    wrong = 0
    for file in answers(small):
        try:
            load_answer(file)
        except DecisionError as error:
            wrong += "but the graph given is" in str(error)
    assert 0 < wrong < len(answers(small))
    rewrite(small, lambda parts: [parts.pop(name) for name in [*parts] if name.startswith("graphs/")])
    assert all(load_answer(file).graph.hash == load(file).header["graph"]["hash"] for file in answers(small))


@pytest.mark.parametrize("name", ["cells/../../escaped", "graphs/../../../escaped", "cells//tmp/escaped_pack"])
def test_nothing_is_unpacked_outside_the_folder(small: Path, tmp_path: Path, name: str) -> None:
    rewrite(small, lambda parts: parts.update({name: b"x"}))
    before = {*tmp_path.rglob("*")}
    with pytest.raises(UserError):
        unpack(small, tmp_path / "loose" / "deep")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} <= before
    assert not Path("/tmp/escaped_pack").exists()


def peak_bytes(action: Callable[[], Any], match: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable, match=match):
            action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def bombs(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    def make(method: int) -> Path:
        with zipfile.ZipFile(tmp_path / "bomb.zip", "w", method) as archive:
            archive.writestr("part", bytes(300 * MIB))
            archive.writestr("part.npy", bytes(MIB))
        return tmp_path / "bomb.zip"

    yield make


def test_parts_are_unpacked_within_limits(bombs: Callable[[int], Path]) -> None:
    path = bombs(zipfile.ZIP_DEFLATED)
    assert peak_bytes(lambda: read_member(path, "part", MIB), "more than 1 MiB") < 4 * MIB


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_packings_that_unpack_without_a_limit_are_refused(bombs: Callable[[int], Path], method: int) -> None:
    path = bombs(method)
    assert peak_bytes(lambda: read_member(path, "part", 1024 * MIB), "packed in a way") < 4 * MIB
    assert peak_bytes(lambda: read_npz(path, 1024 * MIB), "packed in a way") < 4 * MIB
