"""Speed of pricing fusion decisions: one flip by its delta, a whole graph at once, and making requests legal.

`python benchmarks/fusion.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: the median of
several repetitions, with the smallest and the largest, in CPU time of one thread. Numbers that are divided come from
the same run, interleaved. Layered graphs as in dataset=synthetic, on the device of machine=gpu2, from the compiler's
default fusion. `flips_over_full`: flips priced in the time of one whole evaluation (legalise, then price).
`fusion_answer_seconds`: the answer of `algo=kernel_model` with its shipped weights to a budget of 0, the graph read and
all code compiled: the default, the search by the model, the plan and its price. `rnnlm`: a captured training graph.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from lines import say

from graphopt.core.fusible import fusible
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline, legalise
from graphopt.core.machine import Device
from graphopt.core.utils.compiled import compiling_processor_seconds
from graphopt.core.utils.registry import option
from graphopt.costs.one_kernel.flips import FusionFlips
from graphopt.costs.one_kernel.kernel_time import device_constants, runtime_on_one_device, workspace
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.zoo_dataset import capture_model
from graphopt.learn.learner import Learner
from graphopt.problems.optimizer import solve
from graphopt.run.config.construct import construct
from graphopt.run.training import checkpoint
from graphopt.run.training.adopt import PRETRAINED

LIMITS = KernelLimits(max_ops=64, max_inputs=16, max_duplicates=8)  # as conf/task/fusion.yaml
FLIPS = 2000  # priced per repetition


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of this thread: other work on the machine does not count."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measure(graph: Graph, device: Device, repeats: int) -> None:
    ops, rng = graph.num_ops, np.random.default_rng(0)
    f, work, times = fusible(graph), workspace(graph), np.empty(graph.num_ops)
    inline, constants = default_inline(graph, LIMITS), device_constants([device])[0]
    flips = FusionFlips(graph, inline, device, LIMITS)
    free = np.flatnonzero(f.op["can_inline"])
    requests = rng.integers(0, 2, (1, ops), dtype=np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "flip": lambda: flips.price(rng.choice(free, FLIPS)),
        "full": lambda: runtime_on_one_device(f, inline, constants, work, times),
        "legalise": lambda: legalise(graph, requests, LIMITS),
    }
    for call in calls.values():
        call()  # compiled and warm
    taken = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    say(f"flip_microseconds/{ops}", [1e6 * t["flip"] / FLIPS for t in taken], "us")
    say(f"full_price_ns_per_op/{ops}", [1e9 * t["full"] / ops for t in taken], "ns")
    say(f"legalise_ns_per_op/{ops}", [1e9 * t["legalise"] / ops for t in taken], "ns")
    say(f"flips_over_full/{ops}", [(t["legalise"] + t["full"]) / t["flip"] * FLIPS for t in taken], "ratio")


def kernel_model() -> Learner:
    """With the weights that come with the package."""
    machine = construct(option("machine", "gpu2"), "machine")
    task = construct(option("task", "fusion"), "task", {"machine": machine})
    cost = construct(option("cost", "simulator") | {"threads": 1}, "cost", {"machine": machine})
    around = {"machine": machine, "task": task, "cost": cost, "seed": 0}
    made: Learner = construct(option("algo", "kernel_model"), "algo", around)
    weights = PRETRAINED / "kernel_model-fusion-runtime.ckpt"
    checkpoint.load_weights(made, checkpoint.load(weights), str(weights))
    return made.eval()


def answer_seconds(made: Learner, graph: Graph) -> float:
    """CPU seconds from a graph of which nothing is known to a priced answer; those of compiling do not count."""
    fresh = replace(graph, name=f"{graph.name} again")
    start = time.process_time() - compiling_processor_seconds()
    solve(made, fresh, made.task, made.cost, evals=0)[0].solution()
    return time.process_time() - compiling_processor_seconds() - start


def captured(steps: int) -> Graph:
    """A recurrent network's training step, unrolled: about 387 ops for each step."""
    return capture_model({"model": "rnnlm", "layers": 8, "steps": steps, "width": 64, "batch": 4, "backward": True})


def answers(quick: bool) -> None:
    made = kernel_model()
    answer_seconds(made, layered_graph(300, np.random.default_rng(0), "warm"))
    for ops, steps in ((1_000, 3),) if quick else ((20_000, 51), (80_000, 206)):
        graphs = {"layered": layered_graph(ops, np.random.default_rng(ops), f"layered{ops}"), "rnnlm": captured(steps)}
        for name, graph in graphs.items():
            taken = [answer_seconds(made, graph) for _ in range(1 if quick else 3)]
            say(f"fusion_answer_seconds/{name}/{ops}", taken, "s", {"ops": graph.num_ops})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size, three repetitions")
    quick = parser.parse_args().quick
    device: Device = construct(option("machine", "gpu2"), "machine").devices[0]
    for ops in (1_000,) if quick else (1_000, 10_000, 80_000):
        measure(layered_graph(ops, np.random.default_rng(0), f"layered{ops}"), device, 3 if quick else 11)
    answers(quick)


if __name__ == "__main__":
    main()
