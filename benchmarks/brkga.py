"""Speed of BRKGA, end to end: against pymoo's on the same problems; and what it and local searches find at 50,000 ops.

`python benchmarks/brkga.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high", ...}: the median of
several repetitions, with the smallest and the largest. Problems: task=placement_scheduling on machine=gpu2 (2 devices)
and gpu8_nvlink (8), cost=simulator, layered graphs, hyper-parameters of algo=brkga. Evaluations per second are those of
one thread in CPU seconds, so other work on the machine does not count; `brkga_5k_...` are seconds on the clock with two
threads.
"""

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from statistics import mean, median, stdev

import numpy as np
from lines import say

from graphopt.core.graph import Graph
from graphopt.core.list_schedule import Schedule, bottom_levels, dependencies, heft, links, list_by_bottom_level
from graphopt.core.plan import Plans
from graphopt.core.utils import registry
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.graphs.layered import layered_graph
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel, Objective, Prices
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.run.config.construct import construct
from graphopt.search.genetic.brkga import Brkga
from graphopt.search.genetic.evolution import priced_by
from graphopt.search.heuristics.starts import encode

EVALS = 5000
MACHINES = {2: "gpu2", 8: "gpu8_nvlink"}
BRKGA: Brkga = construct(registry.option("algo", "brkga"), "algo")
LARGE, CAP = 50_000, 60.0  # ops; seconds of each large run
SEARCHES = ("brkga", "regal_local")
SCALE: dict[tuple[str, Objective], tuple[str, ...]] = {
    ("gpu8_nvlink", "peak_memory"): SEARCHES,
    ("gpu8_nvlink", "runtime"): (*SEARCHES, "windowed"),
    ("gpu8_pcie", "runtime"): (*SEARCHES, "windowed"),
}
OBJECTIVES: tuple[Objective, ...] = ("peak_memory", "runtime")


@dataclass(frozen=True)
class Bench:
    """A graph, and what prices its plans."""

    graph: Graph
    task: AssignTask
    cost: CostModel

    def problem(self, seed: int, evals: int = EVALS, seconds: float = float("inf")) -> AssignProblem:
        return AssignProblem(self.graph, self.task, self.cost, evals=evals, seconds=seconds, seed=seed)


def bench(graph: Graph, machine_name: str, objective: Objective, threads: int) -> Bench:
    machine = construct(registry.option("machine", machine_name), "machine")
    task = construct(registry.option("task", "placement_scheduling"), "task", {"machine": machine})
    node = registry.option("cost", "simulator") | {"objective": objective, "threads": threads}
    return Bench(graph, task, construct(node, "cost", {"machine": machine}))


def layered(ops: int, seed: int = 0) -> Graph:
    return layered_graph(ops, np.random.default_rng(seed), f"layered{ops}_{seed}")


@dataclass(frozen=True)
class Run:
    best: float
    seconds: float  # on the clock
    cpu_seconds: float


def run(solve: Callable[[AssignProblem], object], problem: AssignProblem) -> Run:
    clock, cpu = time.perf_counter(), time.process_time()
    with suppress(OutOfBudget):
        solve(problem)
    assert problem.evals == problem.evals_cap
    return Run(problem.best_cost, time.perf_counter() - clock, time.process_time() - cpu)


# ---- how long BRKGA takes


def end_to_end(sizes: list[int], repetitions: int) -> None:
    for ops, devices, objective in product(sizes, MACHINES, OBJECTIVES):
        on = bench(layered(ops), MACHINES[devices], objective, threads=2)
        runs = [run(BRKGA.solve, on.problem(seed)) for seed in range(repetitions + 1)][1:]
        suffix = ("" if devices == 2 else f"/{devices}") + ("" if objective == "peak_memory" else f"/{objective}")
        cpu = median(r.cpu_seconds for r in runs)
        say(f"brkga_5k_{ops}_ops_seconds{suffix}", [r.seconds for r in runs], "s", {"cpu_seconds": cpu})


def over_its_prices(sizes: list[int], repetitions: int) -> None:
    """The whole over its simulations alone, in CPU seconds of one thread; and two threads over one, on the clock."""
    for ops, devices, objective in product(sizes, MACHINES, OBJECTIVES):
        one, two = (bench(layered(ops), MACHINES[devices], objective, threads=threads) for threads in (1, 2))
        pricing, spent = one.cost.price, [0.0]

        def timed(plans: Plans, pricing: Callable[[Plans], Prices] = pricing, spent: list[float] = spent) -> Prices:
            start = time.thread_time()
            prices = pricing(plans)
            spent[0] += time.thread_time() - start
            return prices

        one.cost.price = timed  # type: ignore[method-assign]
        shares, speedups = [], []
        for seed in range(repetitions + 1):
            spent[0] = 0.0
            alone, shared = run(BRKGA.solve, one.problem(seed)), run(BRKGA.solve, two.problem(seed))
            shares.append(alone.cpu_seconds / spent[0])
            speedups.append(alone.seconds / shared.seconds)
        say(f"brkga_over_its_prices/{ops}/{devices}/{objective}", shares[1:], "ratio")
        say(f"brkga_two_threads_over_one/{ops}/{devices}/{objective}", speedups[1:], "ratio")


# ---- against pymoo


def pymoo_solve(problem: AssignProblem, seed: int) -> None:
    """pymoo's BRKGA with the same parameters, decoder, prices and meter."""
    from pymoo.algorithms.soo.nonconvex.brkga import BRKGA as Peer
    from pymoo.core.problem import Problem as PeerProblem
    from pymoo.optimize import minimize

    price, own = priced_by(problem), BRKGA.evolution

    class Keys(PeerProblem):
        def __init__(self) -> None:
            super().__init__(n_var=problem.task.key_count(problem.graph), n_obj=1, xl=0.0, xu=1.0)

        def _evaluate(self, x, out, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
            out["F"] = price(x)

    children = own.population - own.elite_count - own.mutant_count
    peer = Peer(n_elites=own.elite_count, n_offsprings=children, n_mutants=own.mutant_count, bias=own.elite_bias)
    minimize(Keys(), peer, ("n_eval", 10 * problem.evals_cap), seed=seed, verbose=False)


def pairs(on: Bench, seeds: range) -> Iterator[tuple[Run, Run]]:
    """(ours, pymoo's) by seed, one after the other."""
    for seed in seeds:
        yield run(BRKGA.solve, on.problem(seed)), run(lambda p, s=seed: pymoo_solve(p, s), on.problem(seed))  # type: ignore[misc]


def against_pymoo(sizes: list[int], repetitions: int) -> None:
    ratios = []
    for ops, devices in product(sizes, MACHINES):
        runs = list(pairs(bench(layered(ops), MACHINES[devices], "peak_memory", threads=1), range(repetitions + 1)))[1:]
        label = f"{ops}/{devices}"
        say(f"brkga_evals_per_second/{label}", [EVALS / ours.cpu_seconds for ours, _ in runs], "1/s")
        say(f"pymoo_evals_per_second/{label}", [EVALS / theirs.cpu_seconds for _, theirs in runs], "1/s")
        ratios.append([theirs.cpu_seconds / ours.cpu_seconds for ours, theirs in runs])
        say(f"brkga_evals_over_pymoo/{label}", ratios[-1], "ratio")
    say("brkga_evals_over_pymoo", [r for some in ratios for r in some], "ratio", {"over": "all sizes and repetitions"})


def quality(graphs: int, seeds: int) -> None:
    """Mean of ours / pymoo's - 1 at equal evaluations, in percent, below 0 is better; low, high: 2 standard errors."""
    test = construct(registry.option("dataset", "synthetic"), "dataset").graphs("test")
    for objective in ("peak_memory", "runtime"):
        difference = []
        for graph in test[:graphs]:
            runs = pairs(bench(graph, MACHINES[2], objective, threads=1), range(seeds))
            difference.append(100 * mean(ours.best / theirs.best - 1 for ours, theirs in runs))
        middle, error = mean(difference), stdev(difference) / len(difference) ** 0.5
        line = {"name": f"brkga_cost_over_pymoo_percent/{objective}", "value": middle, "unit": "%"}
        line |= {"low": middle - 2 * error, "high": middle + 2 * error, "graphs": graphs, "seeds": seeds}
        print(json.dumps(line), flush=True)


# ---- 50,000 ops


def large(machine: str, objective: Objective, algo: str) -> None:
    """A minute of one method in a process of its own, so that the peak of memory is its own."""
    on = bench(layered(LARGE), machine, objective, threads=2)
    optimizer: Optimizer = construct(registry.option("algo", algo), "algo")
    label = f"scale_50k/{machine}/{objective}"
    lists = list_schedules(on, label if algo == "brkga" else None)
    small = Bench(layered(200), on.task, on.cost).problem(0, evals=200)
    with suppress(OutOfBudget):
        optimizer.solve(small)  # so that nothing is compiled on the clock
    clock, problem = time.perf_counter(), on.problem(0, evals=10**9, seconds=CAP)
    with suppress(OutOfBudget):
        optimizer.solve(problem)
    details = {"evals": problem.evals, "seconds": time.perf_counter() - clock}
    best, first = problem.best_cost, problem.initial_cost
    say(f"{label}/{algo}/over_default", [best / first], "ratio", details)
    say(f"{label}/{algo}/over_list_schedule", [best / min(lists)], "ratio", {"list_over_default": min(lists) / first})
    say(f"{label}/{algo}/peak_process_gb", [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6], "GB")


def list_schedules(on: Bench, report: str | None) -> list[float]:
    """Prices of HEFT and of list scheduling by bottom level; with `report`, a label, how long they take."""
    graph, machine, problem = on.graph, on.task.machine, on.problem(0)
    inline = on.task.realise(graph, problem.initial[None]).inline[0]

    def by(rule: Callable[..., Schedule]) -> Schedule:
        kernels = kernel_graph(graph, inline, machine.devices)
        return rule(
            kernels.time, kernels.is_kernel, dependencies(graph, kernels.in_ptr, kernels.in_tensor), links(machine)
        )

    prices = []
    for name, rule in (("heft", heft), ("list_blevel", list_by_bottom_level)):
        schedule, times = by(rule), []
        for _ in range(5 if report else 0):
            clock = time.perf_counter()
            by(rule)
            times.append(time.perf_counter() - clock)
        keys = encode(problem, schedule.device, schedule.urgency)
        prices.append(float(on.cost.price(on.task.realise_keys(graph, keys[None])).cost[0]))
        if report:
            say(f"{report}/{name}_seconds", times, "s", {"over_default": prices[-1] / problem.initial_cost})
    if report and on.cost.objective == "runtime":
        critical_path(on, inline, problem.initial_cost, report)
    return prices


def critical_path(on: Bench, inline: np.ndarray, default: float, label: str) -> None:
    """What no plan is faster than: the longest path with every op on its fastest device and no transfers."""
    kernels = kernel_graph(on.graph, inline, on.task.machine.devices)
    needs = dependencies(on.graph, kernels.in_ptr, kernels.in_tensor)
    longest = float(bottom_levels(kernels.time.min(1), needs, np.zeros(len(needs.source))).max())
    say(f"{label}/critical_path_over_default", [longest / default], "ratio")


def speeds(quick: bool) -> None:
    """End to end, and against pymoo."""
    end_to_end([1000] if quick else [50, 200, 1000], 3 if quick else 7)
    over_its_prices([1000] if quick else [1000, 10_000], 3 if quick else 5)
    if importlib.util.find_spec("pymoo") is None:
        print(json.dumps({"name": "brkga_evals_over_pymoo", "value": None, "unit": "ratio", "reason": "no pymoo"}))
    else:
        against_pymoo([200] if quick else [50, 200, 1000], 2 if quick else 5)
        quality(*((3, 2) if quick else (12, 5)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions, nothing of 50,000 ops")
    parser.add_argument("--large", nargs="*", metavar="NAME", help="only 50,000 ops; MACHINE OBJECTIVE ALGO: one run")
    parser.add_argument("--floor", action="store_true", help="only BRKGA over its own simulations")
    args = parser.parse_args()
    if args.floor:
        return over_its_prices([1000] if args.quick else [1000, 10_000], 3 if args.quick else 5)
    if args.large:
        return large(*args.large)
    if args.large is None:
        speeds(args.quick)
    for (machine, objective), algos in {} if args.quick else SCALE.items():
        for algo in algos:
            one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # of linear algebra, whose threads wait for each other
            subprocess.run([sys.executable, __file__, "--large", machine, objective, algo], check=True, env=one_thread)


if __name__ == "__main__":
    main()
