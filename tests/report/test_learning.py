"""`graphopt report DIR --learning`: gains and verdicts from rows written by hand, the page that is stored, the picture;
and the pictures of trainings."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphopt import CONF
from graphopt.core.errors import UserError
from graphopt.report import command, learning
from graphopt.report.learning import learning_lines
from graphopt.report.pictures.training import draw_training, parsed

PAGE, RESULTS = CONF.parent / "docs" / "learning.md", CONF.parent / "results"
ENTRY = {"problem": "p", "method": "m", "study": "s", "learned": "net", "unlearned": ["scan", "local"],
         "untrained": "off", "evals": [10], "trainings": 3}  # fmt: skip


def study(folder: Path, costs: dict[str, tuple[float, float]]) -> Path:
    """Two graphs of two families, one cost of each by every method; the default costs 2."""
    place = folder / "s"
    place.mkdir()
    rows = [{"status": "ok", "study": "s", "cell": algo, "algo": algo, "graph": graph, "family": graph, "seed": seed,
             "initial": 2.0, "searched_initial": 2.0, "judged": cost, "evals_cap": 10}
            for algo, prices in costs.items() for graph, cost in zip("ab", prices) for seed in (0, 1)]  # fmt: skip
    (place / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def line(folder: Path, monkeypatch: pytest.MonkeyPatch, costs: dict[str, tuple[float, float]], **entry: Any) -> Any:
    (folder / "learning.yaml").write_text(yaml.safe_dump([{**ENTRY, **entry}]))
    monkeypatch.setattr(learning, "FILE", folder / "learning.yaml")
    learning.learning_lines.cache_clear()
    learning._rows.cache_clear()
    return learning_lines(study(folder, costs))[0]


def test_the_hardest_peer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = line(tmp_path, monkeypatch, {"net": (1.0, 1.0), "scan": (1.1, 1.1), "local": (1.5, 1.5), "off": (1.2, 1.2)})
    assert found.best == "scan" and found.verdict == "yes" and found.graphs == 2
    assert found.gain.value == pytest.approx(10.0) and found.training.value == pytest.approx(20.0)
    assert found.untrained.value == pytest.approx(100 * (1.1 / 1.2 - 1))


@pytest.mark.parametrize(
    ("off", "scan", "verdict"),
    [
        ((1.0, 1.0), (1.1, 1.2), "yes, but training is not shown to matter"),
        ((1.2, 1.2), (1.1, 0.9), "not shown"),
        ((1.2, 1.2), (0.9, 0.8), "no: behind"),
    ],
)
def test_verdicts(off: Any, scan: Any, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert line(tmp_path, monkeypatch, {"net": (1.0, 1.0), "scan": scan, "off": off}).verdict == verdict


def test_without_a_peer_training_alone_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = line(tmp_path, monkeypatch, {"net": (1.0, 1.0), "off": (1.3, 1.2)})
    assert found.gain is None and found.best == "" and found.verdict == "yes"


def test_a_folder_without_the_studies_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"none of the studies that learning\.yaml names"):
        learning_lines(tmp_path)
    assert command.main([str(tmp_path), "--learning"]) == 1 and "none of the studies" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_is_what_the_command_makes_and_keeps_what_stands_around_it(tmp_path: Path) -> None:
    """Every number of the table is computed again from the stored studies."""
    before, _, rest = PAGE.read_text().partition("<!-- learning -->\n")
    made = rest.partition("<!-- /learning -->")[0]
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text().replace(made, "old\n"))
    assert command.main([str(RESULTS), "--learning", "--markdown", str(copy)]) == 0
    assert copy.read_text() == PAGE.read_text() and before, (
        "graphopt report results --learning --markdown docs/learning.md"
    )


def test_every_entry_names_a_study_that_is_stored() -> None:
    entries = yaml.safe_load((CONF / "learning.yaml").read_text())
    stored = {path.name for path in RESULTS.iterdir()}
    assert {
        study
        for entry in entries
        for study in ([entry["study"]] if isinstance(entry["study"], str) else entry["study"])
    } <= stored


def test_the_forest_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line(tmp_path, monkeypatch, {"net": (1.0, 1.0), "scan": (1.1, 1.2), "off": (1.2, 1.2)})
    files = command.draw_learning(tmp_path)
    assert [file.name for file in files] == ["learning.png", "learning.svg"]
    assert all(file.stat().st_size > 5_000 for file in files)


def test_trainings_are_drawn_of_cells_that_have_curves(tmp_path: Path) -> None:
    place = study(tmp_path, {"net": (1.0, 1.0)}) / "s"
    assert draw_training(place, tmp_path) == []
    cell = place / "net"
    cell.mkdir()
    (place / "rows.jsonl").rename(cell / "rows.jsonl")
    points = ["step,name,value", "1,reward,0.5", "2,reward,0.7", "1,val/speedup,1.1", "2,val/speedup,1.2"]
    (cell / "metrics.csv").write_text("\n".join([*points, "1,train_evals,5", "2,train_evals,10", "2,rew"]))
    assert [file.name for file in draw_training(place, tmp_path)] == ["training.png", "training.svg"]
    assert parsed((cell / "metrics.csv").read_text())["reward"] == [(1.0, 0.5), (2.0, 0.7)]
