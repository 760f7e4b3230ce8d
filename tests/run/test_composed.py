"""Composed configurations of finished cells: found for the same words and files only, and never believed damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import command
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf

from graphopt import CONF, OWN_OPTIONS
from graphopt.run import composed
from graphopt.run.records.rows import read

WORDS, SOURCES = ["algo=local", "seed=1"], ["config", "file conf"]
CONFIG = {"seed": 1, "algo": {"name": "local", "hops": 1.5}, "ckpt": None, "budget": {"evals": [1]}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_same_words_and_files_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert composed.find_composed(WORDS, SOURCES) is None
    composed.keep_composed(WORDS, SOURCES, CONFIG)
    assert composed.find_composed(WORDS, SOURCES) == CONFIG
    for words, sources in ((WORDS[::-1], SOURCES), (WORDS[:1], SOURCES), (WORDS, SOURCES[:1])):
        assert composed.find_composed(words, sources) is None
    own = tmp_path / "own" / "algo"
    own.mkdir(parents=True)
    (own / "local.yaml").write_text("hops: 3")
    monkeypatch.setenv(OWN_OPTIONS, str(own.parent))
    assert composed.find_composed(WORDS, SOURCES) is None


def test_what_depends_on_more_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    composed.keep_composed(["seed=${oc.env:SEED}"], SOURCES, CONFIG)
    monkeypatch.setenv(OWN_OPTIONS, str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.yaml").write_text("seed: ${oc.env:SEED}")
    composed.keep_composed(WORDS, SOURCES, CONFIG)
    assert not cache.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"config": 3}', '{"config": {"seed": 2}, "digest": "0"}'])
def test_a_damaged_file_is_made_anew(cache: Path, text: str) -> None:
    composed.keep_composed(WORDS, SOURCES, CONFIG)
    [file] = cache.rglob("*.json")
    file.write_text(text)
    assert composed.find_composed(WORDS, SOURCES) is None
    composed.keep_composed(WORDS, SOURCES, CONFIG)
    assert composed.find_composed(WORDS, SOURCES) == CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | {"config": CONFIG | {"seed": 2}}))
    assert composed.find_composed(WORDS, SOURCES) is None


def test_a_cache_that_cannot_be_written_stops_nobody(cache: Path) -> None:
    cache.write_text("a file")
    composed.keep_composed(WORDS, SOURCES, CONFIG)
    assert composed.find_composed(WORDS, SOURCES) is None


def test_a_finished_sweep_composes_nothing_and_a_longer_one_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    small = ["task=fusion", "dataset=synthetic", "dataset.families=[layered]", "dataset.ops=14", "dataset.test=1",
             "budget.evals=2", "logger=none"]  # fmt: skip
    made, inner = list[str](), ConfigLoaderImpl.load_sweep_config

    def counted(self: ConfigLoaderImpl, master_config: Any, sweep_overrides: list[str]) -> Any:
        made.append(" ".join(sweep_overrides))
        return inner(self, master_config, sweep_overrides)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)
    first = command(tmp_path, *small, "algo=default,random", "seed=0,1", sweep=True)
    assert first.code == 0 and len(first.rows) == 4 and len(made) == 2, first.err  # one of each algorithm
    made.clear()
    again = command(tmp_path, *small, "algo=default,random", "seed=0,1", sweep=True)
    assert again.code == 0 and again.out.count("is finished") == 4 and made == [] and "random" in again.out
    [answer, *_] = tmp_path.rglob("decisions/*.npz")
    answer.unlink()
    more = command(tmp_path, *small, "algo=default,random", "seed=0,1,2", sweep=True)
    assert more.code == 0 and more.out.count("is finished") == 3 and len(made) == 2
    assert answer.exists() and len(more.rows) == 6 and len(read(next(tmp_path.rglob("rows.jsonl")))) == 1
    made.clear()
    over = command(tmp_path, *small, "algo=default,random", "seed=0,1", "resume=false", sweep=True)
    assert over.code == 0 and "is finished" not in over.out and made


def test_jobs_are_composed_as_by_hydra() -> None:
    """The quicker way gives what Hydra's own loader gives, key by key, its own node included."""
    Plugins.instance()  # which must load its plugins before their base classes are imported
    from graphopt.run.sweep import Composer

    jobs = [
        ["algo=scan", "seed=0"], ["algo=scan", "seed=1"], ["algo=annealing", "algo.hot=0.1", "seed=1"],
        ["algo=annealing", "algo.hot=0.2", "seed=2"], ["algo=annealing", "algo.hot=null", "seed=2"],
        ["budget.evals=[1,2]", "seed=0"], ["budget.evals=[3]", "seed=0"], ["budget={evals: [1]}", "seed=0"],
        ["budget={seconds: 2}", "seed=1"], ["+algo.more=1", "seed=1"], ["+algo.more=2", "seed=1"],
        ["algo=remeasured", "algo@algo.search=rewrite_sweeps", "seed=3"], ["machine=h200_xla", "dataset.name='b c'"],
        ["machine=h200_xla", "dataset.name='${study}'"], ["machine=h200_xla", "dataset.name=x"],
    ]  # fmt: skip
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", [], RunMode.MULTIRUN)
        composer = Composer(loader)
        for job in jobs:
            found, wanted = (one.load_sweep_config(master, job) for one in (composer, loader))
            assert OmegaConf.to_container(found) == OmegaConf.to_container(wanted), job
