"""Searches BRKGA's hyper-parameters on the training graphs of a data set ("Tuned BRKGA" of REGAL's tables).

`python -m graphopt.tune --objective peak_memory` compares settings with conf/algo/brkga.yaml on the same graphs and
seeds, graph by graph; a setting that loses on many graphs is left early. The best few are compared once more on other
seeds, and the winner is written as a yaml file of the config group `algo`. The study is kept: the same command goes on.
"""

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt import CONF
from graphopt.cli import sentences
from graphopt.config.construct import construct
from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.dataset import Dataset
from graphopt.errors import ConfigError, UsageError, UserError
from graphopt.problems.cost_model import CostModel
from graphopt.problems.pricing import Pricing
from graphopt.problems.task import AssignTask
from graphopt.search.genetic.brkga import Evolution, run_alone, uniform_keys
from graphopt.utils import registry
from graphopt.utils.printable import say
from graphopt.utils.progress import Bar
from graphopt.utils.ranges import count, seconds

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

WORST = 1.0  # log ratios are clipped there: an infeasible answer counts as e times worse, not as infinitely worse
FINAL_SEEDS = range(100, 103)  # not those of the search


@dataclass(frozen=True)
class TuningBenchmark:
    """What settings are compared on."""

    graphs: tuple[Graph, ...]
    task: AssignTask
    cost: CostModel
    evals: int

    def reached(self, graph: Graph, evolution: Evolution, seed: int) -> float:
        """The best score that BRKGA finds by itself."""
        sampler = uniform_keys(self.task.key_count(graph))
        return run_alone(Pricing(graph, self.task, self.cost), sampler, evolution, evals=self.evals, seed=seed)

    def log_ratio(self, graph: Graph, evolution: Evolution, seed: int, plain: float) -> float:
        """log(reached / plain), below 0 where the setting is better."""
        return float(np.clip(np.log(self.reached(graph, evolution, seed) / plain), -WORST, WORST))


def plain_brkga() -> Evolution:
    """The setting that others are compared with."""
    return Evolution(**registry.option("algo", "brkga")["evolution"])


def bench(args: argparse.Namespace) -> TuningBenchmark:
    """Graphs, task and prices as their yaml files say. One thread."""
    around: dict[str, Any] = {"machine": construct(registry.option("machine", args.machine), "machine")}
    task = construct(registry.option("task", args.task), "task", around)
    node = registry.option("cost", "simulator") | {"objective": args.objective, "threads": 1}
    graphs = chosen(dataset(args).graphs("train"), args.graphs, *args.ops)
    return TuningBenchmark(tuple(graphs), task, construct(node, "cost", around), args.evals)


def dataset(args: argparse.Namespace) -> Dataset:
    """The data set as its yaml file says, but for what --set changes."""
    from omegaconf import OmegaConf

    node = OmegaConf.merge(registry.option("dataset", args.dataset), OmegaConf.from_dotlist(args.set))
    made: Dataset = construct(OmegaConf.to_container(node), "dataset", {"seed": 0})  # type: ignore[arg-type]
    return made


def chosen(graphs: Sequence[Graph], count: int, least: int, most: int) -> list[Graph]:
    """Graphs of least to most ops: one of each family in turn, in the data set's order. Raises UsageError if none."""
    families: dict[str, list[Graph]] = {}
    for graph in graphs:
        if least <= graph.num_ops <= most:
            families.setdefault(graph.family, []).append(graph)
    if not families:
        raise UsageError(f"no training graph has {least} to {most} ops; give other --ops or another --dataset")
    turns = [(turn, order, graph) for order, own in enumerate(families.values()) for turn, graph in enumerate(own)]
    return [graph for _, _, graph in sorted(turns, key=lambda entry: entry[:2])][:count]


def suggested(trial: "Trial") -> Evolution:
    """A setting from the space that is searched."""
    return Evolution(
        population=trial.suggest_int("population", 30, 400, log=True),
        elites=round(trial.suggest_float("elites", 0.05, 0.4, step=0.01), 2),
        mutants=round(trial.suggest_float("mutants", 0.0, 0.4, step=0.01), 2),
        elite_bias=round(trial.suggest_float("elite_bias", 0.5, 0.9, step=0.01), 2),
    )


def judged(trial: "Trial", on: TuningBenchmark, plain: Sequence[float]) -> float:
    """Mean log ratio over the graphs, or over those seen when it is clear that the best setting so far is better.

    What has been seen is returned then, not raised, so that the sampler learns from it (as Optuna advises).
    """
    evolution, ratios = suggested(trial), []
    for place in np.random.default_rng(trial.number).permutation(len(on.graphs)).tolist():
        ratios.append(on.log_ratio(on.graphs[place], evolution, place, plain[place]))
        trial.report(ratios[-1], place)
        if trial.should_prune():
            break
    trial.set_user_attr("complete", len(ratios) == len(on.graphs))
    return float(np.mean(ratios))


def study_of(args: argparse.Namespace, on: TuningBenchmark) -> "Study":
    """The stored study, or a new one that starts with plain BRKGA. Raises ConfigError without Optuna, UsageError when
    the stored one compares other things."""
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise ConfigError("tuning needs the package 'optuna'; `pip install -e .[tune]`") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    args.folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(action="ignore"):  # the pruner's interface may change
        pruner = optuna.pruners.WilcoxonPruner(p_threshold=0.1, n_startup_steps=6)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(args.folder / f"{args.name}.jsonl")))
    study = optuna.create_study(storage=storage, study_name=args.name, load_if_exists=True, pruner=pruner)
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials), multivariate=True)
    compared = {key: getattr(args, key) for key in ("objective", "machine", "task", "evals")}
    compared["graphs"] = [graph.hash for graph in on.graphs]
    if study.user_attrs.get("compared", compared) != compared:
        raise UsageError(f"{args.folder / args.name}.jsonl compares on other graphs; give another --name or --folder")
    if not study.trials:
        study.set_user_attr("compared", compared)
        study.enqueue_trial(asdict(plain_brkga()))
    return study


def search(study: "Study", on: TuningBenchmark, args: argparse.Namespace) -> None:
    """Trials until there are enough or the time is over; a stored trial that was interrupted does not count."""
    plain = [on.reached(graph, plain_brkga(), place) for place, graph in enumerate(on.graphs)]
    end = time.monotonic() + args.seconds
    with Bar(f"tune {args.objective}", args.trials) as bar:
        bar.step("stored", done := len(ended(study)))
        for _ in range(args.trials - done):
            if time.monotonic() > end:
                break
            study.optimize(lambda trial: judged(trial, on, plain), n_trials=1)
            bar.step(f"best {min(finished(study).values()):+.4f}")


def ended(study: "Study") -> "list[FrozenTrial]":
    """Trials that came to an end, early or not."""
    return [trial for trial in study.trials if trial.values is not None]


def finished(study: "Study") -> dict[Evolution, float]:
    """Settings that saw all graphs, and their mean log ratios."""
    rows = [trial for trial in study.trials if trial.user_attrs.get("complete")]
    return {Evolution(**{k: round(v, 2) for k, v in trial.params.items()}): trial.values[0] for trial in rows}


def final(study: "Study", on: TuningBenchmark, finalists: int) -> tuple[Evolution, float, float]:
    """(the setting, mean log ratio, its standard error over graphs) of the best on other seeds: the search's own number
    is that of a winner and too good."""
    found = finished(study)
    names = sorted(found, key=lambda evolution: found[evolution])[:finalists]
    jobs = [(graph, seed) for graph in on.graphs for seed in FINAL_SEEDS]
    ratios = np.zeros((len(names), len(jobs)))
    with Bar("finals", len(jobs)) as bar:
        for j, (graph, seed) in enumerate(jobs):
            plain = on.reached(graph, plain_brkga(), seed)
            others = [i for i, name in enumerate(names) if name != plain_brkga()]
            ratios[others, j] = [on.log_ratio(graph, names[i], seed, plain) for i in others]
            bar.step(graph.name)
    best = int(ratios.mean(1).argmin())
    by_graph = ratios[best].reshape(len(on.graphs), -1).mean(1)
    return names[best], float(by_graph.mean()), float(by_graph.std(ddof=1) / len(by_graph) ** 0.5)


def yaml_text(args: argparse.Namespace, on: TuningBenchmark, tried: int, winner: tuple[Evolution, float, float]) -> str:
    """The yaml file, with where it comes from. tried: settings; winner: as `final` says."""
    evolution, mean, error = winner
    sizes = [graph.num_ops for graph in on.graphs]
    lines = [
        f"# Found by `{command(args)}`",
        f"# on {date.today()} at {commit()}: {len(sizes)} training graphs of {min(sizes)} to {max(sizes)} ops.",
        f"# {args.objective} after {args.evals:,} evaluations, on seeds other than the search's, against algo=brkga:",
        f"# {100 * np.expm1(mean):+.2f} %, standard error over graphs {100 * error:.2f}; {tried} settings were tried.",
        "defaults: [brkga, _self_]",
        f"name: {args.name}",
        "evolution:",
        *(f"  {key}: {value}" for key, value in asdict(evolution).items()),
    ]
    return "\n".join(lines) + "\n"


def command(args: argparse.Namespace) -> str:
    """The command line that leads here, with what differs from the defaults."""
    plain = parser().parse_args(["--objective", args.objective, "--name", args.name])
    words = ["python -m graphopt.tune --objective", args.objective, "--name", args.name]
    for key, value in vars(args).items():
        if value != getattr(plain, key) and key not in ("folder", "write"):
            words += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    return " ".join(words)


def commit() -> str:
    """The sources' commit, as a word for the comment."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(asked, cwd=CONF, capture_output=True, text=True)
    except FileNotFoundError:
        return "an unknown commit"
    return f"commit {answer.stdout.strip()}" if answer.returncode == 0 else "an unknown commit"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m graphopt.tune", description="Tune BRKGA's hyper-parameters.")
    result.add_argument("--objective", choices=("peak_memory", "runtime"), default="peak_memory")
    result.add_argument("--name", default="brkga_tuned", help="of the study and of the algorithm (brkga_tuned)")
    result.add_argument("--dataset", default="synthetic", help="whose training graphs (synthetic)")
    result.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the data set")
    result.add_argument("--machine", default="gpu2", help="(gpu2)")
    result.add_argument("--task", default="placement_scheduling", help="(placement_scheduling)")
    result.add_argument("--graphs", type=count, default=24, help="how many (24)")
    result.add_argument("--ops", type=count, nargs=2, default=[40, 400], metavar=("LEAST", "MOST"), help="(40 400)")
    result.add_argument("--evals", type=count, default=5000, help="budget of every run (5000)")
    result.add_argument("--trials", type=count, default=80, help="settings tried, those stored included (80)")
    result.add_argument("--seconds", type=seconds, default=480.0, help="no new trial after that long (480)")
    result.add_argument("--finalists", type=count, default=5, help="compared on other seeds (5)")
    result.add_argument("--folder", type=Path, default=Path("outputs/tune"), help="of the study (outputs/tune)")
    result.add_argument("--write", type=Path, metavar="FILE", help="instead of conf/algo/NAME.yaml")
    return result


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    try:
        on = bench(args)
        study = study_of(args, on)
        search(study, on, args)
        text = yaml_text(args, on, len(ended(study)), final(study, on, args.finalists))
    except (UserError, GraphError) as error:
        say(error, sys.stderr)
        return 1
    file = args.write or CONF / "algo" / f"{args.name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    say(f"{text}wrote {file}", keep="\n")
    return 0


if __name__ == "__main__":
    with sentences():
        sys.exit(main(sys.argv[1:]))
