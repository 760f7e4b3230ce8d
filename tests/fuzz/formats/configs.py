"""Configurations: nodes of every group with damaged values, and words of the command line."""

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from commands import command

from graphopt.core.cli import composed
from graphopt.core.utils.registry import options
from graphopt.problems.optimizer import solve
from graphopt.run.cell import settings_of
from graphopt.run.config.build import build

from ..judge import Format, Said, Wrong
from ..mutate import Draw, damaged, number, plain, text
from .studies import SMALL

DATA = {"dataset=synthetic": SMALL[1:-1],
        "dataset=regal": ("dataset.sizes=[9]", "dataset.train=[1]", "dataset.val=[1]", "dataset.test=[1]",
                          "dataset.room.filter=none")}  # fmt: skip
TASKS = {
    "fusion": ("local", "annealing", "random", "scan", "inline_all", "brkga", "laf_unguided"),
    "placement": ("local", "random", "gp_dfs", "scan", "windowed", "default"),
    "scheduling": ("local", "list_blevel", "brkga", "annealing"),
    "joint": ("local", "brkga", "heft"),
    "placement_scheduling": ("brkga", "regal_local", "windowed"),
}
MACHINES = ("gpu2", "cpu_gpu", "gpu4_pcie", "identical", "sequential_send", "accelerators6")
NODES = ("dataset", "machine", "machine", "task", "cost", "algo", "budget", "seed", "split", "compare", "judge")


def words_of(rng: random.Random) -> tuple[str, ...]:
    """A small run that works."""
    task, data = rng.choice(list(TASKS)), rng.choice(list(DATA))
    return (f"task={task}", f"algo={rng.choice(TASKS[task])}", f"machine={rng.choice(MACHINES)}", data, *DATA[data],
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
    if isinstance(config[group], dict) and target is not None:
        config[group]["_target_"] = target
    (folder / "config.json").write_text(json.dumps(_own_targets(config)))
    return folder / "config.json"


def _own_targets(config: Any) -> Any:
    """Without the classes of others: whom the command line calls is no matter of damage."""
    if isinstance(config, dict):
        fine = {k: v for k, v in config.items() if k != "_target_" or str(v).startswith("graphopt.")}
        return {key: _own_targets(value) for key, value in fine.items()}
    return [_own_targets(value) for value in config] if isinstance(config, list) else config


def read_config(file: Path) -> None:
    """The parts are built and solve a graph; the answer costs a number and no more than the default."""
    config = plain(json.loads(file.read_text()))
    settings = settings_of(config)
    parts = build(config)
    for graph in parts.dataset.graphs(settings.split)[:1]:
        problem, _ = solve(parts.algo, graph, parts.task, parts.cost, evals=6, seconds=5.0, seed=settings.seed)
        if not 0 <= problem.best_cost <= problem.initial_cost:
            raise Wrong(f"the default costs {problem.initial_cost}, the answer {problem.best_cost}")


# --- Words.

# With their usual schedules they train for minutes: `learned` has small ones.
LEARNERS = frozenset(name for name in options("algo") if name.startswith(("go", "gas", "laf", "regal")))
GROUPS = ("dataset", "task", "machine", "cost", "cost@judge", "encoder", "algo", "trainer", "logger", "experiment")
SIZES = (*(f"encoder.{key}" for key in ("width", "layers", "rounds", "heads", "dropout", "cell", "conv", "options",
                                        "aggregation")),
         *(f"algo.network.{key}" for key in ("attention_layers", "attention_heads", "segment", "iterations",
                                             "prior.device")),
         *(f"algo.search.{key}" for key in ("samples", "temperature", "refresh")),
         *(f"algo.learning.{key}" for key in ("epochs", "samples", "flips", "rate", "clip")),
         *(f"trainer.{key}" for key in ("steps", "batch_graphs", "val_every", "val_evals", "patience", "save_every",
                                        "save_seconds", "devices", "accelerator", "precision",
                                        "accumulate_grad_batches", "max_seconds", "strategy")))  # fmt: skip


def paths(node: Any, above: str = "") -> list[str]:
    """Every key of a configuration."""
    if not isinstance(node, dict):
        return []
    return [path for key, inner in node.items() for path in (f"{above}{key}", *paths(inner, f"{above}{key}."))]


def override(rng: Draw, words: tuple[str, ...]) -> str:
    """One word of the command line, sensible or not: an option of a group, a value of a key, or noise."""
    group = rng.choice(GROUPS)
    match rng.randrange(6):
        case 0:
            known = [name for name in options(group.partition("@")[0]) if name not in LEARNERS]
            option = rng.choice([*known, "nothing", "", "[a,b]", "null", "1"])
            return f"{rng.choice(('', '', '+', '~', '++'))}{group}={option}"
        case 1:
            return rng.choice((text(rng)[:200].replace("\x00", ""), "=", group, "a=b=c", "[", "a=[", "a={", "--help",
                               "-x", "${a}=1", "a.b.c.d=1", "~"))  # fmt: skip
    key = rng.choice([*paths(json.loads(_composed(words))), "algo.typo", f"{group}.x", "hydra.job", "a.b"])
    values = (str(number(rng)), "[1,2]", "[]", "{}", "null", "true", "{a: 1}", "[[1]]", "'x'", "gpu2", "1e999", "0x1F",
              "[0]", "[-1]", f"[{number(rng)}]", "inf", "nan", "'a b'", "${seed}", "range(3)", "choice(1)")  # fmt: skip
    return f"{rng.choice(('', '', '', '+', '++', '~'))}{key}={rng.choice(values)}"


def size(rng: Draw) -> str:
    """How large a learner's network and training are."""
    key = rng.choice(SIZES)
    values = ["0", "1", "2", "-1", "7", "300", "0.5", str(number(rng))]
    values += [] if key.endswith("val_evals") else ["4096", "100000", "1000000000", "1e9"]  # those would be done
    return f"{key}={rng.choice(('0', '-1', '100') if key.endswith('devices') else values)}"  # no process may begin here


def learned(rng: Draw) -> tuple[str, ...]:
    """A small run with training, of GO or by another encoder."""
    encoder = rng.choice(("graphsage", "gat", "gin", "message_passing", "sequence", "pyg"))
    layers = "rounds" if encoder == "message_passing" else "layers"
    return ("algo=go", "task=placement", f"encoder={encoder}", "encoder.width=8", f"encoder.{layers}=1",
            "algo.network.segment=16", "algo.search.samples=2",
            "trainer.steps=1", "trainer.val_evals=1", "trainer.max_seconds=5",
            f"machine={rng.choice(('gpu2', 'cpu_gpu'))}", *SMALL, "budget.evals=[6]")  # fmt: skip


def write_words(rng: Draw, folder: Path) -> Path:
    count = 0 if rng.sound else rng.choice((1, 1, 2))
    if not rng.sound and rng.random() < 0.3:
        words = [*learned(rng), *(size(rng) for _ in range(count))]
    else:
        sound = words_of(rng)
        words = [*sound, *(override(rng, sound) for _ in range(count))]
    (folder / "words.json").write_text(json.dumps(words))
    return folder / "words.json"


def read_words(file: Path) -> None:
    """The command itself, in this process. Its rows are of graphs that were solved, or say why not."""
    words = [w for w in json.loads(file.read_text()) if not w.startswith(("output_dir", "hydra.", "logger=wandb"))]
    answer = command(file.parent / "out", *words)
    complaint = answer.err.strip().splitlines()
    unexpected = [line for line in complaint if "unexpected " in line or "(traceback: " in line]
    failed = [row["reason"] for row in answer.rows if row.get("status") == "failed" and "Error: " in str(row["reason"])]
    if unexpected or failed:
        raise RuntimeError([*unexpected, *failed][0])
    if answer.code:
        raise Said(complaint[-1] if complaint else "")
    if not answer.out.strip():
        raise Wrong("the command says nothing")


CONFIGS = (Format("config", write_config, read_config), Format("command", write_words, read_words, share=0.1))
