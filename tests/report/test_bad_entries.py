"""One bad entry costs itself only, whatever is in its folder; a bad problem is a sentence."""

import csv
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_leaderboard import PROBLEMS, TILING, WORDS, board, contest_of, entered  # noqa: F401

from graphopt.core.errors import UserError
from graphopt.graphs.zoo_dataset import collections, spec_name
from graphopt.report.leaderboard import board as leaderboard
from graphopt.report.leaderboard.board import costs_csv, page, standings
from graphopt.report.leaderboard.contests import Contest, read_contest, read_yaml
from graphopt.report.leaderboard.judging import BoardEntry, judged_entries
from graphopt.run.config.former import FORMER
from graphopt.run.records import packed
from tests.fuzz.mutate import Draw, damaged, damaged_bytes, json_text

REPOSITORY = Path(__file__).parents[2]


def judged(contest: Contest) -> dict[str, BoardEntry]:
    """All entries by name, after the page and the costs were written of them."""
    found = judged_entries(contest, contest.folder.parents[1])
    ranked = [(contest, standings(contest, found))]
    assert page(ranked, "").encode() and [*csv.reader(io.StringIO(costs_csv(ranked).encode().decode()))]
    return {entry.name: entry for entry in found}


def costs_of(entry: BoardEntry) -> list[float | None]:
    return [score.cost for score in entry.scores]


@pytest.fixture
def contest(board: Path) -> Contest:  # noqa: F811
    """A problem with a good entry, and one to be spoilt."""
    contest = contest_of(board, "tiling")
    for name in ("good", "mine"):
        entered(contest, name)
    return contest


def test_entries_that_were_changed_at_random(contest: Contest) -> None:
    """Where an entry is refused, no answer of it counts; where it is not, each that counts costs what it costs."""
    said = yaml.safe_load((contest.folder / "mine" / "entry.yaml").read_text())
    pack = {"answers": f"results/rewrite_flops/{packed.NAME}", "digests": {"test_0_8": "1b7774be606d332f"}}
    (contest.folder.parents[1] / "results").mkdir()
    right = costs_of(judged(contest)["good"])
    counted = refused = 0
    for seed in range(130):
        rng = Draw("entry", seed)
        changed = damaged(rng, said | pack if seed % 2 else said)
        try:
            text = yaml.safe_dump(changed).encode(errors="surrogatepass") if seed % 3 else json_text(changed).encode()
        except (ValueError, RecursionError):
            continue
        content = damaged_bytes(rng, text) if seed % 5 == 0 else text
        (contest.folder / "mine" / "entry.yaml").write_bytes(content)
        found = judged(contest)
        assert costs_of(found["good"]) == right, seed
        mine = found["mine"]
        assert mine.refusal or len(mine.scores) == len(right), seed
        assert all(cost is None or cost == known for cost, known in zip(costs_of(mine), right)), seed
        assert len(mine.refusal) <= 500 and all(len(score.reason) <= 600 for score in mine.scores), seed
        counted, refused = counted + (None not in costs_of(mine)), refused + bool(mine.refusal)
    assert counted > 6 and refused > 30


PACK = f"results/a/{packed.NAME}"
WRONG: list[dict[str, Any]] = [
    *({"answers": PACK, "digests": {"test_0_8": digest}} for digest in ("a/b", "", "\0", "..", "A" * 16, 7, None, [1])),
    *({"answers": PACK, "digests": digests} for digests in ([1], None, {"": "1b7774be606d332f"}, {1: "ab12"})),
    *({"answers": pack, "digests": {}} for pack in (f"results/../../{packed.NAME}", f"results/\0/{packed.NAME}", "",
                                                    f"/results/a/{packed.NAME}", "results/a", ["results"], 3, None)),
    *({"costs": costs} for costs in ({"": 1.0}, [1], {1: 1.0}, {"other": 1.0}, None, {"../test_0_8": 1.0})),
    {"title": ""}, {"by": 3}, {"method": "a" * 9999}, {"budget": None}, {"hardware": ["x"]},
]  # fmt: skip


@pytest.mark.parametrize("values", WRONG)
def test_wrong_values_refuse_the_entry(contest: Contest, values: dict[str, Any]) -> None:
    said = yaml.safe_load((contest.folder / "mine" / "entry.yaml").read_text())
    (contest.folder / "mine" / "entry.yaml").write_text(yaml.safe_dump(said | values))
    found = judged(contest)
    assert found["mine"].refusal and None not in costs_of(found["good"])


@pytest.mark.parametrize("claim", [10**400, -1, float("nan"), float("inf"), True, "1", None, [1], 1e308])
def test_odd_costs_refuse_their_answer_alone(contest: Contest, claim: Any) -> None:
    said = yaml.safe_load((contest.folder / "mine" / "entry.yaml").read_text())
    said["costs"]["test_0_8"] = claim
    (contest.folder / "mine" / "entry.yaml").write_text(yaml.safe_dump(said))
    first, second = judged(contest)["mine"].scores
    assert first.cost is None and "entry.yaml claims" in first.reason and second.cost is not None


def link(file: Path) -> None:
    kept = file.parents[1] / "elsewhere"
    kept.mkdir(exist_ok=True)
    shutil.move(file, kept / file.name)
    file.symlink_to(kept / file.name)


def unreadable(file: Path) -> None:
    file.chmod(0)


def folder_instead(file: Path) -> None:
    file.unlink()
    file.mkdir()


def pipe_instead(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def lost(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


INSTEAD: list[Callable[[Path], None]] = [link, unreadable, folder_instead, pipe_instead, lost]


@pytest.mark.parametrize("instead", INSTEAD, ids=lambda how: how.__name__)
@pytest.mark.parametrize("name", ["entry.yaml", "test_0_8.json"])
def test_what_is_no_plain_file(contest: Contest, name: str, instead: Callable[[Path], None]) -> None:
    if instead is unreadable and os.geteuid() == 0:
        pytest.skip("root may read everything")
    instead(contest.folder / "mine" / name)
    found = judged(contest)
    assert None not in costs_of(found["good"])
    mine = found.get("mine")  # a lost entry.yaml may not be seen at all
    assert mine is None or mine.refusal or costs_of(mine)[0] is None
    assert name == "entry.yaml" or (mine and mine.scores[1].cost is not None)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\nb", b"\x1b[2J", b"#x", b"<b>", b"a" * 250, b"=cmd()", b" "])
def test_odd_names_of_folders(contest: Contest, name: bytes) -> None:
    os.rename(contest.folder / "mine", os.path.join(os.fsencode(contest.folder), name))
    found = judged(contest)
    assert len(found) == 2 and all(None not in costs_of(entry) for entry in found.values())


def test_a_folder_that_is_a_link(contest: Contest, tmp_path: Path) -> None:
    shutil.move(contest.folder / "mine", tmp_path / "mine")
    (contest.folder / "mine").symlink_to(tmp_path / "mine")
    found = judged(contest)
    assert "is a link" in found["mine"].refusal and None not in costs_of(found["good"])


# ---- problems


@pytest.mark.parametrize(("changes", "why"), [
    ({"instances": ["../x"]}, "is no name"), ({"instances": ["a/b"]}, "is no name"), ({"instances": [7]}, "is no name"),
    ({"datasets": [TILING | {"_target_": "os.system"}]}, "is no key that a problem may set|_target_"),
    ({"datasets": [{"name": "../x"}]}, "is no name of an option"),
    ({"config": {"machine": "cpu_core", "task": "tiling", "cost": "torch"}}, "does not say in which environment"),
    ({"config": {"machine": {"name": "cpu_core", "devices": {"_target_": "os.system"}}, "task": "tiling",
                 "cost": "tile_time"}}, "is no key that a file may set"),
    ({"answers": "../answers.zip", "instances": {}}, "answers must name results"),
    ({"answers": "results/a/answers.zip", "instances": {"a": "../b"}}, "is no name with a digest"),
    ({"equality": {"draws": 1}}, "from 2 to 100"), ({"equality": {"draws": 10**9}}, "from 2 to 100"),
    ({"equality": {"tolerance": 0.1}}, "at most 1.0e-6"),
    ({"equality": {"tolerance": float("nan")}}, "at most 1.0e-6"),
    ({"datasets": None}, "needs a list under datasets"),
])  # fmt: skip
def test_a_wrong_problem_is_a_sentence(board: Path, changes: dict[str, Any], why: str) -> None:  # noqa: F811
    said = yaml.safe_load((board / "tiling" / "problem.yaml").read_text())
    (board / "tiling" / "problem.yaml").write_text(yaml.safe_dump(said | changes))
    try:
        (absent, *_) = read_contest(board / "tiling", board.parent).absent.values()
    except UserError as error:
        absent = str(error)
    assert any(one in absent for one in why.split("|"))


def test_stored_problems_name_the_data_sets_of_their_answers() -> None:
    """Whoever solves these has the problem's graphs."""
    for file in sorted((REPOSITORY / "leaderboard").glob("*/problem.yaml")):
        said = read_yaml(file)
        named = {node if isinstance(node, str) else node["name"]: node for node in said["datasets"]}
        for name, digest in said["instances"].items() if "answers" in said else ():
            header, _ = packed.read(REPOSITORY / said["answers"], digest)
            stored = header["config"]["dataset"]
            node = named[FORMER["dataset"].get(stored["name"], stored["name"])]
            if not isinstance(node, str):
                assert name in map(spec_name, collections()[node["collection"]]["test"]), file


def test_an_entry_says_how_much_it_covers(board: Path) -> None:  # noqa: F811
    contest = contest_of(board, "tiling")
    assert leaderboard.covered(contest, ["test_1_9"]) == ("answers to 1 of the problem's 2 instances, none to test_0_8")
    assert leaderboard.covered(contest, ["test_0_8", "test_1_9"]) == "answers to 2 of the problem's 2 instances"
    assert contest.datasets == ("tiling dataset.source=random",) and PROBLEMS
