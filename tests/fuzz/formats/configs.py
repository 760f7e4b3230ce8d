"""Configurations: nodes of every group with damaged values, and words of the command line."""

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from commands import command

from graphopt.core.cli import composed
from graphopt.core.errors import Unsolved
from graphopt.core.utils.registry import options
from graphopt.problems.optimizer import solve
from graphopt.run.cell import settings_of
from graphopt.run.config.build import build

from ..judge import Format, Said, Wrong
from ..mutate import Draw, damaged, number, plain, text

SMALL = {"dataset=synthetic": ["dataset.families=[layered]", "dataset.ops=[12]",
                               "dataset.train=1", "dataset.val=1", "dataset.test=1"],
         "dataset=regal": ["dataset.sizes=[9]", "dataset.train=[1]", "dataset.val=[1]", "dataset.test=[1]",
                           "dataset.room.filter=none"]}  # fmt: skip
TASKS = {
    "fusion": (
        "local",
        "annealing",
        "random",
        "scan",
        "inline_all",
        "brkga",
        "laf_unguided",
    ),
    "placement": ("local", "random", "gp_dfs", "scan", "windowed", "default"),
    "scheduling": ("local", "list_blevel", "brkga", "annealing"),
    "joint": ("local", "brkga", "heft"),
    "placement_scheduling": ("brkga", "regal_local", "local_then_brkga", "windowed"),
}
MACHINES = ("gpu2", "cpu_gpu", "gpu4_pcie", "identical", "sequential_send", "accelerators6")
NODES = ("dataset", "machine", "machine", "task", "cost", "algo", "budget", "seed", "split", "compare", "judge")


def words_of(rng: random.Random) -> tuple[str, ...]:
    """A small run that works."""
    task = rng.choice(list(TASKS))
    data = rng.choice(list(SMALL))
    return (f"task={task}", f"algo={rng.choice(TASKS[task])}", f"machine={rng.choice(MACHINES)}", data, *SMALL[data],
            "logger=none", "budget.evals=[6]")  # fmt: skip


@lru_cache(maxsize=256)
def _composed(words: tuple[str, ...]) -> str:
    return json.dumps(composed(words))


def write_config(rng: Draw, folder: Path) -> Path:
    """A whole configuration of which one group is damaged. What may name classes (`_target_`) is the user's own."""
    config = json.loads(_composed(words_of(rng)))
    group = rng.choice(NODES)
    target = config[group].pop("_target_", None) if isinstance(config[group], dict) else None
    config[group] = damaged(rng, config[group])
    if isinstance(config[group], dict):
        config[group] |= {} if target is None else {"_target_": target}
    (folder / "config.json").write_text(json.dumps(_without_targets(config, target)))
    return folder / "config.json"


def _without_targets(config: Any, kept: Any) -> Any:
    """The command line is the user's own: whom it calls is no matter of damage."""
    own = "graphopt."
    if isinstance(config, dict):
        return {k: _without_targets(v, kept) for k, v in config.items() if k != "_target_" or str(v).startswith(own)}
    return [_without_targets(v, kept) for v in config] if isinstance(config, list) else config


def read_config(file: Path) -> None:
    """The parts are built and solve a graph; the answer costs a number and no more than the default."""
    config = plain(json.loads(file.read_text()))
    settings = settings_of(config)
    parts = build(config)
    for graph in parts.dataset.graphs(settings.split)[:1]:
        try:
            problem, _ = solve(parts.algo, graph, parts.task, parts.cost, evals=6, seconds=5.0, seed=settings.seed)
        except Unsolved as error:
            raise Said(str(error)) from None
        initial, best = problem.initial_cost, problem.best_cost
        if best != best or initial != initial or best > initial or best < 0:
            raise Wrong(f"the default costs {initial}, the answer {best}")


def override(rng: Draw) -> str:
    """One word of the command line, sensible or not."""
    group = rng.choice(
        ("dataset", "task", "machine", "cost", "cost@judge", "encoder", "algo", "trainer", "logger", "experiment")
    )
    return rng.choice((_choice, _key, _key, _key, _size, _noise))(rng, group)


# With their usual schedules they train for minutes: `learned_words` has small ones.
LEARNERS = frozenset(name for name in options("algo") if name.startswith(("go", "gas", "laf", "regal")))


def _choice(rng: Draw, group: str) -> str:
    known = [name for name in options(group.partition("@")[0]) if name not in LEARNERS]
    return f"{rng.choice(('', '', '+', '~', '++'))}{group}={rng.choice([*known, 'nothing', '', '[a,b]', 'null', '1'])}"


def _key(rng: Draw, group: str) -> str:
    keys = ("seed", "budget.evals", "budget.seconds", "split", "compare", "ckpt", "resume", "study", "dataset.ops",
            "dataset.test", "dataset.graph_seed", "dataset.families", "machine.devices.gpu.count",
            "machine.link_bandwidth",
            "machine.link_latency", "machine.devices.gpu.bandwidth", "machine.devices", "machine.transfer.lane",
            "task.levels", "task.max_ops", "task.max_inputs", "task.max_duplicates", "cost.objective", "cost.threads",
            "judge.objective", "algo.start", "algo.hops", "dataset", "task", "algo.typo", f"{group}.x",
            "hydra.job", "a.b")  # fmt: skip
    values = (str(number(rng)), "[1,2]", "[]", "{}", "null", "true", "{a: 1}", "[[1]]", "'x'", "gpu2", "1e999", "0x1F",
              "[0]", "[-1]", f"[{number(rng)}]", "inf", "nan", "'a b'", "${seed}", "range(3)", "choice(1)")  # fmt: skip
    return f"{rng.choice(('', '', '', '+', '++', '~'))}{rng.choice(keys)}={rng.choice(values)}"


SIZES = {
    "encoder": ("width", "layers", "rounds", "heads", "dropout", "cell", "conv", "options", "aggregation"),
    "algo": ("network.attention_layers", "network.attention_heads", "network.segment", "network.iterations",
             "network.prior.device", "search.samples", "search.temperature", "search.refresh", "learning.epochs",
             "learning.samples", "learning.flips", "learning.rate", "learning.clip"),
    "trainer": ("steps", "batch_graphs", "val_every", "val_evals", "patience", "save_every", "save_seconds", "devices",
                "accelerator", "precision", "accumulate_grad_batches", "max_seconds", "strategy"),
}  # fmt: skip
LEARNED = ("algo=go", "task=placement", "trainer.steps=1", "trainer.val_evals=1", "trainer.max_seconds=5",
           "encoder.width=8", "encoder.layers=1", "algo.network.segment=16", "algo.search.samples=2")  # fmt: skip


def _size(rng: Draw, group: str) -> str:
    """How large a learner's network and training are."""
    own = rng.choice(list(SIZES))
    key = rng.choice(SIZES[own])
    values = ["0", "1", "2", "-1", "7", "300", "0.5", str(number(rng))]
    values += [] if key == "val_evals" else ["4096", "100000", "1000000000", "1e9"]  # those would be done
    return f"{own}.{key}={rng.choice(('0', '-1', '100') if key == 'devices' else values)}"  # no process may begin here


def learned_words(rng: Draw) -> tuple[str, ...]:
    """A small run with training, of GO or by another encoder."""
    encoder = rng.choice(("graphsage", "gat", "gin", "message_passing", "sequence", "pyg"))
    sizes = [word.replace("layers", "rounds") if encoder == "message_passing" else word for word in LEARNED]
    return (*sizes, f"encoder={encoder}", f"machine={rng.choice(('gpu2', 'cpu_gpu'))}", "dataset=synthetic",
            *SMALL["dataset=synthetic"], "logger=none", "budget.evals=[6]")  # fmt: skip


def _noise(rng: Draw, group: str) -> str:
    return rng.choice(
        (
            text(rng)[:200].replace("\x00", ""),
            "=",
            f"{group}",
            "a=b=c",
            "[",
            "a=[",
            "a={",
            "--help",
            "-x",
            "${a}=1",
            "a.b.c.d=1",
            "~",
        )
    )


def write_words(rng: Draw, folder: Path) -> Path:
    if not rng.sound and rng.random() < 0.3:
        words = [*learned_words(rng), *(_size(rng, "") for _ in range(rng.choice((1, 1, 2))))]
    else:
        words = [*words_of(rng), *(override(rng) for _ in range(0 if rng.sound else rng.choice((1, 1, 2))))]
    (folder / "words.json").write_text(json.dumps(words))
    return folder / "words.json"


def read_words(file: Path) -> None:
    """The command itself, in this process. Its rows are of graphs that were solved, or say why not."""
    words = [w for w in json.loads(file.read_text()) if not w.startswith(("output_dir", "hydra.", "logger=wandb"))]
    answer = command(file.parent / "out", *words)
    complaint = answer.err.strip().splitlines()
    unexpected = [line for line in complaint if "unexpected " in line or "(traceback: " in line]
    failed = [row for row in answer.rows if row.get("status") == "failed" and "Error: " in str(row.get("reason"))]
    if unexpected or failed:
        raise RuntimeError(unexpected[0] if unexpected else failed[0]["reason"])
    if answer.code:
        raise Said(complaint[-1] if complaint else "")
    if not answer.out.strip():
        raise Wrong("the command says nothing")


CONFIGS = (Format("config", write_config, read_config), Format("command", write_words, read_words, share=0.1))
