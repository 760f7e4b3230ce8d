"""The tables of results in README and docs/results.md: docs/results.yaml says of each number which stored study backs
it; each is computed again from the rows of that study, and the tables hold no other number."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_data import check_data

from graphopt import CONF
from graphopt.core.machine import make_machine
from graphopt.core.utils import registry
from graphopt.report.figures import Figure, figure, figures_of
from graphopt.report.tables.improvement import improvements
from graphopt.report.tables.lines import best_known, summarise
from graphopt.report.tables.reach import ALL, reaches
from graphopt.report.tables.read_rows import Entry, collect
from graphopt.run.records import packed

ROOT = CONF.parent
WORDS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|half|third|quarter|tenth"
NUMBER = re.compile(rf"\d|\b(?:{WORDS})s?\b", re.IGNORECASE)
Number = Mapping[str, Any]


PARTS = {"README.md": "\n## Results\n", "docs/results.md": "\n## The numbers\n"}


def results(page: str) -> list[str]:
    """Lines of a page about results, as they are read: without the places that links lead to."""
    part = (ROOT / page).read_text().split(PARTS[page])[1].split("\n## ")[0]
    return [re.sub(r"\]\([^)]*\)", "]", line) for line in part.splitlines()]


def table(page: str) -> list[str]:
    """The rows of the table."""
    return [line for line in results(page) if line.startswith("|")][2:]


PAGES: dict[str, list[dict[str, Any]]] = yaml.safe_load((ROOT / "docs" / "results.yaml").read_text())
BACKED = [(page, place) for page, rows in PAGES.items() for place in range(len(rows))]


@cache
def entries(study: str) -> list[Entry]:
    return collect(ROOT / "results" / study).entries


@cache
def stored_figures(study: str) -> dict[str, Figure]:
    return {each.name: each for each in figures_of(ROOT / "results" / study)}


@cache
def lines(study: str, kind: str, over: str) -> Sequence[Any]:
    """Lines of the tables that `graphopt report` makes of a study: rows of one setting alone compare."""
    found = entries(study)
    assert len({entry.setting for entry in found if entry.method != "lower_bound"}) == 1, study
    if kind == "speed_up":
        return summarise(found, "all", best_known(found))
    if kind == "improvement":
        return [line for line in improvements(found, over) if line.kind == "all"]
    return [line for line in reaches(found, over) if line.graph == ALL]


def chosen(found: Sequence[Any], where: Mapping[str, Any]) -> list[Any]:
    return [each for each in found if all(getattr(each, field) == value for field, value in where.items())]


def line_of(study: str, kind: str, number: Number) -> Any:
    (line,) = chosen(lines(study, kind, number.get("over", "")), number[kind])
    return line


def printed(study: str, number: Number, form: str) -> str:
    """What README has to say: a number of a study, as docs/results.yaml names it."""
    (kind, what), *_ = number.items()
    if kind == "figure":
        found = stored_figures(study)[what]
    elif kind == "speed_up":
        found = figure("", line_of(study, kind, number).speedup)
    elif kind == "improvement":
        found = figure("", line_of(study, kind, number).improvement)
    elif kind == "reach":
        line = line_of(study, kind, number)
        return ("> " if line.missed else "") + form.format(line.share.mean, line.share.low, line.share.high)
    else:
        return f"{counted(study, kind, what, number):,}"
    return form.format(found.value, found.low, found.high)


def counted(study: str, kind: str, what: Any, number: Number) -> int:
    """Whole numbers: of what was solved, of settings that the rows have, of the code's, or of a page that is quoted."""
    if kind == "graphs":
        return len({entry.graph for entry in chosen(entries(study), what)})
    if kind == "back_ends":
        return len({dict(entry.setting)["judge"] for entry in chosen(entries(study), what)})
    if kind == "evals":
        assert any(entry.budget == what for entry in entries(study)), f"no rows of {study} have {what} evaluations"
        return int(what)
    if kind == "devices":
        assert any(dict(entry.setting)["machine"] == what for entry in entries(study)), f"{study} has no {what}"
        settings = registry.option("machine", what)
        return len(make_machine(**{key: value for key, value in settings.items() if key != "_target_"}).devices)
    if kind == "percent":
        module, name = what.rsplit(".", 1)
        return round(100 * getattr(import_module(module), name))
    assert kind == "quoted", kind
    assert number["says"] in (ROOT / number["page"]).read_text(), f"{number['page']} does not say {number['says']!r}"
    assert str(what) in number["says"]
    return int(what)


def unbacked(row: str, expected: Sequence[str]) -> Iterator[str]:
    """What is wrong with a row that should print these numbers, in this order, and no others."""
    place, rest = 0, row
    for text in expected:
        found = re.compile(rf"(?<![\d.,+-]){re.escape(text)}(?!\d|[.,]\d)").search(rest, place)
        if found is None:
            yield f"{text!r} is not in its place: {rest[place:]}"
            continue
        place = found.end()
        rest = rest[: found.start()] + " " * len(text) + rest[place:]
    yield from (f"{match[0]!r} has no figure behind it: {rest}" for match in NUMBER.finditer(rest))


@pytest.mark.parametrize("page", PARTS)
def test_every_row_is_backed(page: str) -> None:
    rows = table(page)
    assert len(rows) > 5
    assert [
        row for row, backed in zip(rows, PAGES[page], strict=True) if not row.startswith(f"| {backed['row']}")
    ] == []


def test_what_is_said_of_the_table_has_no_numbers_of_its_own() -> None:
    said = "\n".join(results("README.md")).split(table("README.md")[-1])[1].split("\n    ")[0]
    assert "Run for real" in said and NUMBER.findall(said) == []


@pytest.mark.parametrize("page", PARTS)
def test_every_number_is_the_studys(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = list[str]()
    for place in (place for of, place in BACKED if of == page):
        backed = PAGES[page][place]
        if (needed := backed.get("needs")) and check_data(needed):
            monkeypatch.setenv("GRAPHOPT_CHECK_DATA", str(check_data(".")))
        expected = [
            printed(number.get("study", backed["study"]), number, number.get("print", backed.get("print", "")))
            for number in backed["numbers"]
        ]
        wrong += [f"{page}: {each}" for each in unbacked(table(page)[place], expected)]
    assert wrong == []


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("| fusion, 22 graphs | 1.123 [1.057, 1.206] |", False),
        ("| fusion, 22 graphs | 1.124 [1.057, 1.206] |", True),
        ("| fusion, 22 graphs | -1.123 [1.057, 1.206] |", True),
        ("| fusion, 22 graphs | 1.1234 [1.057, 1.206] |", True),
        ("| fusion, 22 graphs | 1.123 [1.057, 1.206], untrained 1.1 |", True),
        ("| fusion, 22 graphs | 1.123 [1.057, 1.206] / 1.123 [1.057, 1.206] |", True),
        ("| fusion, 22 graphs, two machines | 1.123 [1.057, 1.206] |", True),
        ("| fusion, 122 graphs | 1.123 [1.057, 1.206] |", True),
        ("| fusion | 1.123 [1.057, 1.206] | 22 graphs |", True),
    ],
)
def test_a_number_that_is_not_the_studys_is_found(row: str, wrong: bool) -> None:
    assert any(unbacked(row, ["22", "1.123 [1.057, 1.206]"])) == wrong


def test_studies_that_need_other_files_to_replay_are_named() -> None:
    """Those whose answers are about graphs that they do not hold, and those that hold no answers."""
    page = (ROOT / "docs" / "results.md").read_text()
    named = page.split("<!-- results:replay -->")[1].split("<!-- /results:replay -->")[0]
    studies = [place for place in (ROOT / "results").iterdir() if place.is_dir()]
    needing = {study.name for study in studies if not holds_its_graphs(study / packed.NAME)}
    assert needing == {name for name in re.findall(r"`(\w+)`", named) if (ROOT / "results" / name).is_dir()}


def holds_its_graphs(pack: Path) -> bool:
    if not pack.is_file():
        return False
    shared = pack.parent.parent / packed.NAME
    return all(
        any(packed.graph_bytes(place, graph) is not None for place in (pack, shared))
        for graph in {*packed.digests(pack).values()}
    )
