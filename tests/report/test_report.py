"""The report: tables against numbers worked out by hand, intervals against known data, replay of stored rows."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from split_work import chain
from test_decision import solved

from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.report.command import main
from graphopt.report.tables.lines import Difference, Line, best_known, blocks, differences, evals_to_reach, summarise
from graphopt.report.tables.read_rows import Collected, collect, method_labels
from graphopt.report.tables.render import numbers, tables
from graphopt.report.tables.statistics import bootstrap, mean_of_graphs, tabled
from graphopt.report.tables.table import as_markdown

pytestmark = pytest.mark.usefixtures("toy_options")


def row(algo: str, graph: str, judged: float, **fields: Any) -> dict[str, Any]:
    base = {
        "study": "s", "dataset": "d", "split": "test", "family": graph[0], "ops": 100, "task": "fusion",
        "machine": "gpu", "cost": "simulator", "judge": "simulator", "objective": "runtime", "encoder": None, "seed": 0,
        "evals_cap": 20, "initial": 8.0, "searched": judged, "seconds": 0.5, "evals": 20, "status": "ok",
        "trace": [[0, 8.0], [5, judged]],
    }  # fmt: skip
    return {**base, "algo": algo, "graph": graph, "judged": judged, **fields}


def store(folder: Path, rows: Iterable[dict[str, Any]], cell: str = "cell") -> Path:
    file = folder / cell / "rows.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return file


def lines(found: Collected) -> dict[tuple[str, float], Line]:
    (entries,) = found.by_setting().values()
    return {(line.method, line.budget): line for line in summarise(entries, "all", best_known(entries))}


FOUR = [  # two methods, two graphs, one budget
    row("local", "a", 4.0), row("local", "b", 8.0),
    row("go", "a", 2.0, seed=0), row("go", "b", 4.0, seed=0), row("go", "a", 8.0, seed=1), row("go", "b", 4.0, seed=1),
]  # fmt: skip


def test_speedup_improvement_and_gap_by_hand(tmp_path: Path) -> None:
    found = lines(collect(store(tmp_path, FOUR)))
    local, go = found["local", 20], found["go", 20]
    assert local.speedup.mean == pytest.approx(math.sqrt(2 * 1))
    assert go.speedup.mean == pytest.approx((4 * 1 * 2 * 2) ** 0.25)
    assert local.improvement == pytest.approx(25.0)  # 50 % and 0 %
    assert go.improvement == pytest.approx((75 + 0 + 50 + 50) / 4)
    assert local.gap == pytest.approx(100 * (4 / 2 - 1 + 8 / 4 - 1) / 2)  # best known: 2 and 4
    assert go.gap == pytest.approx(100 * (0 + 3 + 0 + 0) / 4)
    assert (local.graphs, local.seeds, go.graphs, go.seeds) == (2, 1, 2, 2)


def test_wins_are_by_geometric_mean_and_ties_count_for_both(tmp_path: Path) -> None:
    found = lines(collect(store(tmp_path, FOUR)))
    assert found["go", 20].wins == 2  # on a: sqrt(2 * 8) = 4 equals local's 4
    assert found["local", 20].wins == 1
    near = [row("local", "a", 4.003), row("scan", "a", 4.005), row("go", "a", 4.0)]
    found = lines(collect(store(tmp_path / "near", near)))
    assert [found[m, 20].wins for m in ("go", "local", "scan")] == [1, 1, 0]


def test_losses_are_beyond_the_noise(tmp_path: Path) -> None:
    rows = [row("go", "a", 8.0), row("go", "b", 8.1), row("go", "c", 8.1, noise=0.02)]
    assert lines(collect(store(tmp_path, rows)))["go", 20].losses == 1


def test_noise_is_told_and_decides_who_wins(tmp_path: Path) -> None:
    near = [row("local", "a", 4.1, noise=0.02), row("scan", "a", 4.4, noise=0.02), row("go", "a", 4.0, noise=0.02)]
    found = collect(store(tmp_path, near))
    assert [lines(found)[m, 20].wins for m in ("go", "local", "scan")] == [1, 1, 0]  # 4.0 + 2 x 2 % x sqrt(2) = 4.23
    assert "standard errors of up to 2 %" in as_markdown(tables(found, "local"))
    computed = collect(store(tmp_path / "computed", FOUR))
    assert "standard error" not in as_markdown(tables(computed, "local"))


def test_evaluations_to_reach(tmp_path: Path) -> None:
    rows = [
        row("go", "a", 4.0, trace=[[0, 8.0], [3, 5.0], [7, 4.2], [9, 4.0]]),  # 90 % of 4 is 4.4: at 7
        row("local", "a", 5.0, trace=[[0, 8.0], [3, 5.0]]),  # never
        row("go", "b", 8.0, trace=[[0, 8.0]]), row("local", "b", 8.0, trace=[[0, 8.0]]),  # nothing to gain
    ]  # fmt: skip
    found = collect(store(tmp_path, rows))
    best = best_known(found.entries)
    reach = {(e.method, e.graph_name): evals_to_reach(e, best.searched[e.graph]) for e in found.entries}
    assert reach == {("go", "a"): 7, ("local", "a"): math.inf, ("go", "b"): None, ("local", "b"): None}
    assert (lines(found)["go", 20].reach, lines(found)["go", 20].reached) == (7, 1.0)
    assert lines(found)["local", 20].reached == 0.0


def test_paired_difference_by_hand(tmp_path: Path) -> None:
    (difference,) = differences(collect(store(tmp_path, FOUR)).entries, "local")
    assert isinstance(difference, Difference)
    # local has seed 0 only: seed 1 of go is paired with its mean. Ratios: a 4/2, 4/8; b 8/4, 8/4
    assert difference.ratio.mean == pytest.approx((2 * 0.5 * 2 * 2) ** 0.25)
    assert (difference.method, difference.graphs) == ("go", 2)


def test_pairing_cancels_what_graphs_share(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for g, base in enumerate(rng.uniform(1, 8, 20)):
        rows += [row(m, f"g{g}", price, family=f"f{g}") for m, price in (("local", base), ("go", base / 1.1))]
    (difference,) = differences(collect(store(tmp_path, rows)).entries, "local")
    assert (difference.ratio.low, difference.ratio.high) == (pytest.approx(1.1), pytest.approx(1.1))


def test_budgets_of_training_and_the_time_to_the_best_stand_beside_the_total(tmp_path: Path) -> None:
    timed = {"trace": [[0, 0.0, 8.0], [5, 0.2, 4.0]], "seconds": 0.5}
    rows = [row("go", "a", 4.0, train_evals=4_700_000, **timed), row("local", "a", 4.0, **timed)]
    line = lines(collect(store(tmp_path, rows)))["go", 20]
    assert (line.train_evals, line.best_seconds, line.seconds) == (4_700_000, 0.2, 0.5)
    text = as_markdown(tables(collect(tmp_path), "local"))
    assert "| s to best | s/graph | training evals |" in text
    assert "| 0.2 | 0.5 | 4.7 M |" in text and "| 0.2 | 0.5 | - |" in text


def test_studies_are_not_mixed(tmp_path: Path) -> None:
    rows = [row("go", "a", 4.0, study="one"), row("go", "a", 2.0, study="two")]
    text = as_markdown(tables(collect(store(tmp_path, rows)), "local"))
    assert "### one: fusion on gpu" in text and "### two: fusion on gpu" in text
    assert "several configurations" not in text


def test_blocks_by_size(tmp_path: Path) -> None:
    sizes = {"a": 299, "b": 300, "c": 999, "d": 1000, "e": 5000, "f": 80_000}
    found = blocks(collect(store(tmp_path, [row("go", g, 4.0, ops=n) for g, n in sizes.items()])).entries)
    assert {label: "".join(e.graph_name for e in part) for label, part in found["size"].items()} == {
        "<300 ops": "a", "300-1,000 ops": "bc", "1,000-5,000 ops": "d", ">=5,000 ops": "ef",
    }  # fmt: skip
    assert list(found["family"]) == list("abcdef")
    assert "dataset" not in found


def test_graphs_count_equally_however_many_seeds() -> None:
    assert mean_of_graphs(np.array([[1.0, 1.0, 1.0], [4.0, np.nan, np.nan]])) == 2.5
    found = tabled([("b", "y", 1, 2.0), ("a", "x", 0, 1.0), ("b", "y", 1, 4.0)])
    assert (found.graphs, found.families, found.seeds) == (["a", "b"], ["x", "y"], [0, 1])
    np.testing.assert_equal(found.values_GS, [[1.0, np.nan], [np.nan, 3.0]])


def covered(families: list[str]) -> float:
    """How often an interval of 30 families of 4 graphs, which are alike in each, 5 seeds and mean 1 holds that mean."""
    rng, held = np.random.default_rng(1), 0
    for trial in range(100):
        values = 1.0 + np.repeat(rng.normal(0, 0.5, (30, 1)), 4, 0) + rng.normal(0, 0.3, (120, 5))
        interval = bootstrap(values, families, resamples=500, seed=trial)
        held += interval.low <= 1.0 <= interval.high
    return held / 100


def test_intervals_over_families_cover_the_truth() -> None:
    """Close to 95 of 100; siblings that count as independent make intervals far too narrow."""
    families = [str(i // 4) for i in range(120)]
    assert 0.90 <= covered(families) <= 0.99
    assert covered([str(i) for i in range(120)]) < 0.75


def test_one_family_has_no_interval_and_the_mean_is_over_graphs() -> None:
    values = np.array([[1.0], [1.0], [4.0]])
    assert not bootstrap(values, ["a", "a", "a"]).known
    two = bootstrap(values, ["a", "a", "b"])
    assert (two.mean, two.low, two.high) == (2.0, 1.0, 4.0)


def test_random_graphs_are_their_own_families(tmp_path: Path) -> None:
    rows = [row("go", name, 4.0, family="erdos_renyi", dataset="regal") for name in "ab"]
    rows += [row("go", name, 4.0, family="gnmt") for name in "cd"]
    sampled = {e.graph_name: e.sampled for e in collect(store(tmp_path, rows)).entries}
    assert sampled == {"a": "regal/a", "b": "regal/b", "c": "gnmt", "d": "gnmt"}


def test_seed_spread_widens_the_interval() -> None:
    graphs = np.zeros((50, 1))
    families = [str(i) for i in range(50)]
    calm = bootstrap(graphs + np.zeros((1, 3)), families)
    shaky = bootstrap(graphs + np.array([[-0.1, 0.0, 0.1]]), families)  # the whole training run is better or worse
    assert calm.high - calm.low == 0
    assert shaky.high - shaky.low > 0.1


def test_bootstrap_is_reproducible_and_takes_gaps() -> None:
    values = np.random.default_rng(2).normal(size=(8, 3))
    values[0, 1:] = np.nan
    found = bootstrap(values, list("abcdeefg"))
    assert found == bootstrap(values, list("abcdeefg"))
    assert np.isfinite([found.low, found.high]).all()


def test_partial_and_repeated_lines_are_tolerated(tmp_path: Path) -> None:
    file = store(tmp_path, [row("go", "a", 4.0), row("go", "a", 2.0)])  # the cell was resumed: the last counts
    file.write_text(file.read_text() + '{"algo": "go", "gra\n[1, 2]\n\n')
    found = collect(tmp_path)
    assert [e.judged for e in found.entries] == [2.0]
    assert found.broken_lines == 2


def test_refused_and_unpriced_rows_stand_apart(tmp_path: Path) -> None:
    illegal = {"status": "illegal", "task": "rewrite", "algo": "regal", "reason": "regal needs choices"}
    store(tmp_path, [illegal], "one")
    store(tmp_path, [{**illegal, "seed": 1}], "two")
    lacking = [row("heft", g, math.inf, status="infeasible", reason=f"{g} lacks 3 MB") for g in "xyz"]
    unpriced = [row("go", "b", math.inf), row("go", "c", 4.0, initial=math.inf)]
    store(tmp_path, [row("go", "a", 4.0), *unpriced, *lacking], "three")
    store(tmp_path, [{"status": "failed", "algo": "go", "reason": "killed"}, row("go", "d", 4.0)], "retried")
    found = collect(tmp_path)
    assert (len(found.entries), len(found.refused)) == (2, 2)
    assert (len(found.infeasible), len(found.unpriced)) == (4, 1)
    text = as_markdown(tables(found, "local"))
    assert "| illegal | rewrite | regal | 2 | regal needs choices |" in text
    assert "killed" not in text
    assert "| infeasible | fusion | go | 1 | b: no plan found fits the devices' memory |" in text
    assert "| infeasible | fusion | heft | 3 | the first, x: x lacks 3 MB |" in text and "(2 graphs, 1 seed)" in text
    assert "| ok, no ratio | fusion | go | 1 | found a plan that fits, where the default does not: no ratio |" in text
    assert not re.search(r"\b(nan|inf)\b", text)


def test_one_graph_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    """However many seeds it has."""
    rows = [row(m, "a", 4.0 + s / 10, seed=s) for m, s in [("local", 0), ("go", 0), ("go", 1), ("go", 2)]]
    store(tmp_path, rows)
    text = as_markdown(tables(collect(tmp_path), "local"))
    assert "[" not in text and "better" not in text and "no difference" not in text and "95 %" in text
    assert "No interval and no verdict from a single family." in text
    assert main([str(tmp_path), "--improvement-over", "local"]) == 0
    assert "| go | 1 | 3 | -2.50 | 2.50 |" in (tmp_path / "improvement.md").read_text()
    assert main([str(tmp_path), "--reach", "local"]) == 0
    with (tmp_path / "improvement.csv").open() as file:
        assert {(line["improvement_low"], line["improvement_high"]) for line in csv.DictReader(file)} == {("", "")}


def test_pooled_configurations_are_announced(tmp_path: Path) -> None:
    store(tmp_path, [row("go", "a", 4.0, config_hash="x")], "one")
    store(tmp_path, [row("go", "a", 2.0, config_hash="y")], "two")
    assert "several configurations" in as_markdown(tables(collect(tmp_path), "local"))


@pytest.mark.parametrize("damage", [
    {"initial": [1]}, {"judged": {}}, {"trace": [1, 2]}, {"trace": "abc"}, {"trace": [[]]}, {"seed": math.nan},
    {"ops": math.inf}, {"approach": 3.0},
])  # fmt: skip
def test_damaged_rows_do_not_hide_the_others(
    tmp_path: Path, damage: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, [row("go", "a", 4.0), {**row("go", "b", 4.0), **damage}])
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "(1 graph, 1 seed)" in said and ("unreadable" in said or "without a price" in said)


@pytest.mark.parametrize("rows", [[], [{"status": "failed", "algo": "go", "reason": "killed"}],
                                  [row("go", "a", math.inf, status="infeasible", reason="lacks 3 MB")]])  # fmt: skip
def test_nothing_to_draw_is_a_sentence(
    tmp_path: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, rows)
    assert main([str(tmp_path), "--plots"]) == 0
    said = capsys.readouterr().out
    assert "nothing to draw" in said and not list(tmp_path.rglob("*.png"))
    assert str(rows[0]["reason"]) in said if rows else "no results" in said


def test_no_rows_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"holds no rows\.jsonl"):
        collect(tmp_path)
    assert main([str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_files_say_what_the_terminal_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, FOUR)
    assert main([str(tmp_path), "--csv", str(tmp_path / "numbers.csv")]) == 0
    printed, markdown = capsys.readouterr().out, (tmp_path / "table.md").read_text()
    assert "2.000 [" in printed and "**2.000 [" in markdown
    records = list(csv.DictReader(io.StringIO((tmp_path / "numbers.csv").read_text())))
    assert (tmp_path / "numbers.csv").read_text() == numbers(collect(tmp_path))
    (overall,) = [r for r in records if r["kind"] == "all" and r["method"] == "local"]
    assert float(overall["speedup_mean"]) == pytest.approx(math.sqrt(2))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study with one solved graph and its decision; the row's prices are those of the file."""
    graph: Graph = chain([4.0] * 6, ["add", "add", "add", "opaque", "add", "add"], [0] * 6)
    path = solved(tmp_path, graph, [1, 1, 1, 0, 1, 1])
    fields = {"initial": 72.0, "searched": 14.0, "decision": f"decisions/{path.name}", "graph_hash": graph.hash}
    store(tmp_path, [row("hand", "chain", 42.0, **fields)])
    return tmp_path


WRONG: dict[str, Callable[[Path], Any]] = {
    "": lambda study: None,
    "was not found": lambda study: next(study.rglob("graphs/*.npz")).unlink(),
    "no decision file": lambda study: next(study.rglob("decisions/*.npz")).unlink(),
    "row without a decision file": lambda study: store(study, [row("hand", "chain", 42.0)], "second"),
    **{f"{field}: the row says": lambda study, field=field: claim_less(study / "cell" / "rows.jsonl", field)
       for field in ("initial", "searched", "judged")},
}  # fmt: skip


def claim_less(file: Path, field: str) -> None:
    claimed = json.loads(file.read_text())
    file.write_text(json.dumps({**claimed, field: claimed[field] * 0.99}))


@pytest.mark.parametrize("said", WRONG)
def test_replay_finds_what_is_wrong_or_missing(study: Path, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    WRONG[said](study)
    assert main([str(study), "--replay"]) == (1 if said else 0)
    out = capsys.readouterr().out
    assert said in out and ("decisions replay" if said else "1 of 1 decisions replay") in out


def test_proved_gap_is_over_the_highest_bound(tmp_path: Path) -> None:
    rows = [
        row("cpsat", "a", 4.0, bound=4.0), row("cpsat", "b", 6.0, bound=4.0), row("exact", "b", 6.0, bound=5.0),
        row("go", "a", 5.0, bound=0.0), row("go", "b", 6.0), row("go", "c", 7.0),
    ]  # fmt: skip
    found = lines(collect(store(tmp_path, rows)))
    assert found["cpsat", 20].proved_gap == pytest.approx(100 * (0 + 1 / 5) / 2)
    assert found["go", 20].proved_gap == pytest.approx(100 * (1 / 4 + 1 / 5) / 2)  # c has no bound
    text = as_markdown(tables(collect(tmp_path), "local"))
    assert "| gap % | proved gap % | evals to 90 % |" in text and "highest bound proved" in text


def test_no_proved_gap_without_bounds_or_by_another_judge(tmp_path: Path) -> None:
    other = [row("cpsat", "a", 4.0, bound=5.0, judge="measured")]
    for name, rows in (("none", FOUR), ("judged", other)):
        found = collect(store(tmp_path / name, rows))
        assert all(math.isnan(line.proved_gap) for line in lines(found).values())
        assert "proved gap" not in as_markdown(tables(found, "local"))


def test_encoders_are_named_only_where_they_differ() -> None:
    """Older rows name the usual encoder of a learner that has none, though nothing read it."""
    rows = [row(algo, "g", 1.0, params=9, encoder=encoder) for algo, encoder in (
        ("go", "gin"), ("go", "gat"), ("gas", "gin"), ("old", "graphsage"), ("old", None))]  # fmt: skip
    assert {*method_labels(rows).values()} == {"go/gin", "go/gat", "gas", "old"}
