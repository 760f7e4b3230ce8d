"""Pages: one file, no network, what comes out of files escaped; in Chromium, where it is installed, they open, zoom,
search and filter. And the sentence that a study says."""

import html
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fusion_graphs import random_graph
from split_work import chain
from test_decision import solved
from test_report import row, store

from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.report import command, decision
from graphopt.report.answer import Answer
from graphopt.report.api import compare, optimize
from graphopt.report.page.study_page import study_page
from graphopt.report.tables.read_rows import collect
from graphopt.report.tables.verdict import verdict

pytest.importorskip("bokeh", reason="pages need Bokeh: pip install 'graphopt[html]'")
MOST_BYTES, HOSTILE = 8_000_000, "</script><script>alert('hostile')</script>"


def chain_of(count: int) -> Graph:
    return chain([4096.0] * count, [("exp", "relu", "add")[number % 3] for number in range(count)], [0] * count)


# ---- the sentence


def entries(folder: Path, **costs: Any) -> Path:
    """Rows of two graphs: algorithm -> their costs; `net` has parameters."""
    return store(folder, [row(algo, graph, cost, params=5 if algo == "net" else 0)
                          for algo, both in costs.items() for graph, cost in zip("ab", both)])  # fmt: skip


@pytest.mark.parametrize(
    ("scan", "said"),
    [
        (
            (4.4, 4.4),
            "the learned net is 10.0 % [10.0, 10.0] faster than scan, the best method without learning",
        ),
        ((3.6, 4.4), "not shown to be faster"),
        ((3.6, 3.6), "is worse (-10.0 % [-10.0, -10.0]) than"),
    ],
)
def test_the_verdict_is_over_the_hardest_peer(scan: Any, said: str, tmp_path: Path) -> None:
    place = entries(tmp_path, net=(4.0, 4.0), scan=scan, local=(7.0, 7.0), default=(8.0, 8.0))
    text = verdict(collect(place))
    assert text.startswith("At 20 evaluations on 2 test graphs") and said in text


def test_without_a_learned_method_the_best_is_named(tmp_path: Path) -> None:
    assert "scan is best: 2.000" in verdict(collect(entries(tmp_path, scan=(4.0, 4.0), default=(8.0, 8.0))))


def test_the_short_end_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries(tmp_path, net=(4.0, 4.0), scan=(4.4, 4.4), default=(8.0, 8.0))
    command.print_verdict(tmp_path)
    out = capsys.readouterr()
    text = out.out + out.err
    assert "10.0 % [10.0, 10.0] faster" in text and str(tmp_path / "report.html") in text
    assert len(text.splitlines()) <= 15 and (tmp_path / "report.html").is_file()


# ---- files


def test_a_study_is_one_file_without_network(tmp_path: Path) -> None:
    place = store(
        tmp_path, [row(algo, "a", 4.0, family=HOSTILE, params=int(algo == "net")) for algo in ("net", "scan", HOSTILE)]
    )
    assert command.main([str(place.parent), "--html"]) == 0
    text = (place.parent / "report.html").read_text()
    assert HOSTILE not in text and "the learned net" in text
    assert not re.search(r"""<(script|link|img)[^>]+(src|href)=["']?(https?:)?//""", text)
    assert len(text) < MOST_BYTES


def test_an_answer_is_one_file(tmp_path: Path, toy_options: None) -> None:
    graph = chain([4.0] * 3, ["add"] * 3, [0] * 3, name=HOSTILE)
    answer = Answer.load(solved(tmp_path, graph, [0, 1, 0]))
    text = answer.html(tmp_path / "page" / "answer.html").read_text()
    assert HOSTILE not in text and "graphopt answer replay" in text and len(text) < MOST_BYTES


def test_the_commands_of_a_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_options: None) -> None:
    """As they are printed: the page is unescaped, and each line is split as a shell does."""
    monkeypatch.chdir(tmp_path)
    answer = Answer.load(solved(tmp_path, chain([4.0] * 3, ["add"] * 3, [0] * 3), [0, 1, 0]))
    text = html.unescape(answer.html(tmp_path / "answer.html").read_text())
    lines = [line for line in text.splitlines() if "graphopt answer " in line]
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line.replace("<pre>", "").replace("</pre>", ""), comments=True)
        assert decision.main(words[2:]) == 0, line
    assert (tmp_path / "edited.npz").is_file()


# ---- in a browser


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


def test_a_page_lists_the_answers_and_what_matters_in_each(tmp_path: Path) -> None:
    results = compare([random_graph(0, 40)], algos=["scan"], budget=[200], output_dir=tmp_path, progress=False)
    text = study_page(results.folder, tmp_path / "page.html", answers="scan").read_text()
    (answer,) = results.answers()
    change = max(answer.changes(), key=lambda one: one.price_alone)
    line = next(line for line in text.splitlines() if "what matters" not in line and f"{answer.speedup:.3f}x" in line)
    assert html.escape(f"{change.op}: {change.what} (+") in line and html.escape(" -> ") in line
    with pytest.raises(UserError, match="no answer of net is stored there; methods: scan"):
        study_page(results.folder, tmp_path / "page.html", answers="net")


def opened(browser: Any, file: Path, scheme: str) -> tuple[Any, list[str]]:
    """(the page when it has drawn, errors of its console, which grow)."""
    page, errors = browser.new_page(color_scheme=scheme, viewport={"width": 1200, "height": 900}), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith(("file:", "data:", "blob:")) else errors.append(asked.url)
    )
    page.goto(file.as_uri())
    page.wait_for_function("window.Bokeh && Bokeh.documents.length && Bokeh.documents.every(one => one.is_idle)")
    return page, errors


SHOWN = """() => Object.fromEntries([...Bokeh.documents[0]._all_models.values()]
  .filter(model => model.type === 'GlyphRenderer').map(model => [model.glyph.type, model.visible]))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_study_opens_in_a_browser_and_its_rows_are_filtered(browser: Any, scheme: str, tmp_path: Path) -> None:
    families = ("ant", *(f"c{n}" for n in range(14)))
    rows = [row(algo, f"{family}{number}", 4.0, family=family, params=5 if algo == "net" else 0)
            for algo in ("net", "scan") for family in families for number in range(2)]  # fmt: skip
    page, errors = opened(browser, study_page(store(tmp_path, rows).parent, tmp_path / "page.html"), scheme)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    page.locator("input.filter").first.fill("ant")
    assert page.locator("input.filter + .scroll tbody tr:visible").count() == 1
    assert errors == []


def test_a_graph_of_5000_ops_zooms_from_kernels_to_ops_and_is_searched(browser: Any, tmp_path: Path) -> None:
    answer = optimize(chain_of(5000), algo="xla_priority", budget=1)
    file = answer.html(tmp_path / "answer.html")
    assert file.stat().st_size < MOST_BYTES
    page, errors = opened(browser, file, "light")
    assert page.evaluate(SHOWN)["Circle"] and not page.evaluate(SHOWN)["Rect"]
    plot = max(page.locator(".bk-Figure").all(), key=lambda each: each.bounding_box()["height"])
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for _ in range(8):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(50)
    page.wait_for_function(f"({SHOWN})().Rect")
    page.locator(".bk-TextInput input").fill("op4321")
    page.wait_for_function("""[...Bokeh.documents[0]._all_models.values()].some(
        model => model.type === 'ColumnDataSource' && model.data.operator
                 && [...model.data.alpha].some(alpha => alpha < 1))""")
    assert errors == []
