"""The leaderboard: entries are priced from their decisions; forged, cut, infeasible and foreign ones are refused."""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from graphopt import OWN_OPTIONS, __main__
from graphopt.contests.tiling.pricing_tiles import judge
from graphopt.contests.tiling.workload_files import schedule_json, write_json
from graphopt.core.errors import UserError
from graphopt.report.leaderboard import board as leaderboard
from graphopt.report.leaderboard.contests import Contest, read_contest, read_yaml
from graphopt.report.leaderboard.judging import BoardEntry, judged_entry
from graphopt.run.records.answer_file import load, write
from graphopt.run.records.rows import read

RANDOM = {"train": [], "val": [], "test": [8, 9], "sizes": [128, 256, 512, 1024], "products": 0.45, "graph_seed": 0}
TILING = {"name": "tiling", "source": "random", "random": RANDOM}
WORDS = {"title": "mine", "by": "me", "method": "as it comes", "budget": "none", "hardware": "a core"}
PROBLEMS = {
    "tiling": {"config": {"machine": "cpu_core", "task": "tiling", "cost": "tile_time"}, "datasets": [TILING],
               "instances": ["test_0_8", "test_1_9"]},
    "devices": {"config": {"machine": {"name": "gpu2"}, "task": "placement", "cost": "simulator"},
                "datasets": [{"name": "synthetic", "families": ["layered"],
                              "ops": [20], "train": 0, "val": 0, "test": 1}],
                "instances": ["layered_20_test_0"]},
}  # fmt: skip


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A folder with two problems."""
    for name, said in PROBLEMS.items():
        folder = tmp_path / "leaderboard" / name
        folder.mkdir(parents=True)
        text = {"title": f"About {name} <b>", "about": "A test.", "unit": "s", **said}
        (folder / "problem.yaml").write_text(yaml.safe_dump(text))
    return tmp_path / "leaderboard"


def contest_of(board: Path, name: str) -> Contest:
    return read_contest(board / name, board.parent)


def entered(contest: Contest, name: str) -> dict[str, Any]:
    """Writes the defaults as an entry of tiling; returns what its yaml file says."""
    folder, costs = contest.folder / name, {}
    folder.mkdir()
    for instance in contest.instances:
        schedule = instance.original.schedule  # type: ignore[attr-defined]
        verdict = judge(instance.task.workload(instance.graph), schedule)
        write_json(folder / f"{instance.name}.json", schedule_json(schedule, verdict.latencies))
        costs[instance.name] = verdict.cost
    said = WORDS | {"costs": costs}
    (folder / "entry.yaml").write_text(yaml.safe_dump(said))
    return said


def entry(contest: Contest, name: str = "mine") -> BoardEntry:
    return judged_entry(contest, contest.folder / name, contest.folder.parent.parent)


def change(path: Path, how: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    how(value)
    path.write_text(json.dumps(value))


def test_an_honest_entry_is_priced(board: Path) -> None:
    contest = contest_of(board, "tiling")
    said = entered(contest, "mine")
    assert {score.instance: score.cost for score in entry(contest).scores} == pytest.approx(said["costs"])
    assert contest.absent == {} and [i.baseline for i in contest.instances] == pytest.approx([*said["costs"].values()])


def widest(solution: Any) -> None:
    """Tiles of the whole native size, more than fits."""
    solution["granularities"] = [[128, 128, 4096] for _ in solution["granularities"]]
    solution["traversal_orders"] = [None for _ in solution["granularities"]]


def cheaper(solution: Any) -> None:
    solution["subgraph_latencies"][0] *= 0.999


DAMAGE: dict[str, tuple[Callable[[Any], None], str]] = {
    "over the limit": (widest, "over the capacity"),
    "cheaper than it is": (cheaper, "the file claims a cost of"),
    "an op is left out": (lambda s: [s[key].pop() for key in s], "runs in no subgraph"),
    "an op that is not there": (lambda s: s["subgraphs"][0].append(99), "names ops beyond"),
    "no solution": (lambda s: s.pop("subgraphs"), "it has no subgraphs"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_wrong_answer_is_refused_and_the_others_count(board: Path, what: str) -> None:
    contest = contest_of(board, "tiling")
    entered(contest, "mine")
    how, reason = DAMAGE[what]
    change(contest.folder / "mine" / "test_0_8.json", how)
    first, second = entry(contest).scores
    assert first.cost is None and reason in first.reason and "test_0_8.json" in first.reason
    assert second.cost is not None


def test_a_truncated_file_and_a_forged_claim_are_refused(board: Path) -> None:
    contest = contest_of(board, "tiling")
    said = entered(contest, "mine")
    file = contest.folder / "mine" / "test_0_8.json"
    file.write_text(file.read_text()[:-40])
    digits = f"{said['costs']['test_1_9']!r}"
    forged = float(digits.replace(digits[0], str((int(digits[0]) + 1) % 9 + 1), 1))
    (contest.folder / "mine" / "entry.yaml").write_text(
        yaml.safe_dump(said | {"costs": said["costs"] | {"test_1_9": forged}})
    )
    cut, claimed = entry(contest).scores
    assert cut.cost is None and "test_0_8.json is no JSON" in cut.reason
    assert claimed.cost is None and f"entry.yaml claims a cost of {forged!r}, and it costs" in claimed.reason


@pytest.mark.parametrize(("said", "reason"), [
    ("- a\n", "holds no keys"), ("title: [\n", "is no yaml"), ("a: &x [1]\nb: *x\n", "aliases are not read"),
    (yaml.safe_dump({"title": "x"}), "needs a text under by"),
    (yaml.safe_dump(WORDS | {"costs": {"other": 1.0}}), "there is no instance 'other'"),
    (yaml.safe_dump(WORDS | {"costs": {}, "answers": "../secret/answers.zip", "digests": {}}), "must name results/"),
    ("!!python/object/apply:os.getcwd []\n", "is no yaml"),
])  # fmt: skip
def test_an_entry_that_cannot_be_read_is_refused_whole(board: Path, said: str, reason: str) -> None:
    contest = contest_of(board, "tiling")
    (contest.folder / "mine").mkdir()
    (contest.folder / "mine" / "entry.yaml").write_text(said)
    found = entry(contest)
    assert found.scores == () and reason in found.refusal


MINE = '''
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer


class Mine(Optimizer):
    """Every op on the second device."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        problem.cost((problem.initial * 0 + 1)[None])
        problem.cost(problem.initial[None])
'''


def test_a_strangers_entry_appears_without_an_edit(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An algorithm in a folder of its own solves the problem, and its answers are entered and priced; then one is
    damaged, one forged."""
    own = tmp_path / "own"
    (own / "options" / "algo").mkdir(parents=True)
    (own / "strangers.py").write_text(MINE)
    (own / "options" / "algo" / "mine.yaml").write_text("_target_: strangers.Mine\nname: mine\n")
    monkeypatch.syspath_prepend(str(own))
    monkeypatch.setenv(OWN_OPTIONS, str(own / "options"))
    words = ["task=placement", "dataset=synthetic", "dataset.families=[layered]",
             "dataset.ops=[20]", "dataset.train=0", "dataset.val=0"]  # fmt: skip
    words += ["dataset.test=1", "algo=mine", "study=mine", "budget.evals=[5]", "logger=none", "compare=[]",
              f"output_dir={tmp_path}/out"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["graphopt", "--config-dir", str(own / "options"), *words])
    try:
        __main__.main()
    finally:
        GlobalHydra.instance().clear()
    (row,) = [row for file in (tmp_path / "out").glob("mine/*/rows.jsonl") for row in read(file)]
    monkeypatch.delenv(OWN_OPTIONS)  # whoever builds the page has never seen it
    enter = ["--enter", str(tmp_path / "out" / "mine"), "devices/mine", "--algo", "mine"]
    assert leaderboard.main([str(board), *enter]) == 0
    assert (board / "devices" / "mine" / "layered_20_test_0.npz").is_file()
    contest = contest_of(board, "devices")
    (score,) = entry(contest).scores
    assert score.cost == row["judged"]
    with pytest.raises(UserError, match="exists"):
        leaderboard.main([str(board), *enter])
    file = contest.folder / "mine" / "layered_20_test_0.npz"
    decided = load(file)
    decided.header["prices"]["judged"] *= 0.5  # the yaml file keeps the true price
    write(file, decided)
    (score,) = entry(contest).scores
    assert score.cost is None and "the file claims a cost of" in score.reason


def test_an_answer_to_another_graph_or_task_is_refused(board: Path) -> None:
    devices, tiling = contest_of(board, "devices"), contest_of(board, "tiling")
    entered(tiling, "mine")
    (devices.folder / "mine").mkdir()
    shutil.copy(tiling.folder / "mine" / "test_0_8.json", devices.folder / "mine" / "layered_20_test_0.json")
    (devices.folder / "mine" / "entry.yaml").write_text(yaml.safe_dump(WORDS | {"costs": {"layered_20_test_0": 1.0}}))
    (score,) = entry(devices).scores
    assert score.cost is None and "answers of this task are .npz files" in score.reason


def test_the_page_and_the_csv(board: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contest = contest_of(board, "tiling")
    entered(contest, "honest")
    entered(contest, "over")
    change(contest.folder / "over" / "test_0_8.json", widest)
    (contest.folder / "empty").mkdir()
    assert leaderboard.main([str(board), "--out", str(tmp_path / "page")]) == 0
    said = capsys.readouterr()
    assert "refused: tiling/over: test_0_8: test_0_8.json: subgraph" in said.err and "empty is no entry" in said.err
    page = (tmp_path / "page" / "index.html").read_text()
    assert "About tiling &lt;b&gt;" in page and "prefers-color-scheme: dark" in page and page.count("<script") == 1
    assert "1.0000" in page and "0.5000" in page and "over the capacity" in page
    with (tmp_path / "page" / "costs.csv").open() as file:
        lines = [*csv.DictReader(file)]
    assert [(line["entry"], line["points"]) for line in lines] == [
        ("honest", "1.000000"), ("honest", "1.000000"), ("over", ""), ("over", "1.000000"),
    ]  # fmt: skip
    assert float(lines[0]["cost"]) == pytest.approx(contest.instances[0].baseline)
    with pytest.raises(UserError, match="there is no problem nothing; there are devices, tiling"):
        leaderboard.main([str(board), "--out", str(tmp_path / "page"), "--problem", "nothing"])


def test_the_stored_entries_claim_what_their_answers_cost() -> None:
    """Of this repository: every definition is read; a sample of entries is priced in full."""
    place = Path(__file__).parents[2] / "leaderboard"
    names = sorted(file.parent.name for file in place.glob("*/problem.yaml"))
    assert {"executed_memory", "fusion", "fusion_wide", "placement_memory", "rewriting", "tiling"} <= {*names}
    for file in place.glob("*/*/entry.yaml"):
        said = read_yaml(file)
        assert {*WORDS} < {*said} and all(np.isfinite(cost) for cost in said["costs"].values())
    for name, which in (("tiling", "tile_merge"), ("placement_memory", "default")):
        contest = read_contest(place / name, place.parent)
        found = judged_entry(contest, place / name / which, place.parent)
        assert found.scores and all(score.cost is not None for score in found.scores)
