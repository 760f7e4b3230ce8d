"""`Calibrated`: the time of TorchInductor's code of a plan on one core, computed, not measured.

The program is lowered once, with every value stored. A plan's loops follow from these: the stored values, by Inductor's
rules where a plan asks for nothing; the operations and reads of each stored value; which loops become one. A preset has
the costs of operations, reads and writes, which `graphopt measure calibrate` measures.

That subcommand compiles small programs by TorchInductor and times them on one pinned core. They are each operation in
loops that are vectorised and that are not, reductions, and reads that do not step by one. Others are copies of growing
sizes, the beginning of a loop and of a kernel. It takes some minutes. Times are kept, so that a stopped call goes on
where it was. The numbers go to `calibrated.json` in $GRAPHOPT_CACHE, or to the file of `--file`.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from graphopt import cache_dir
from graphopt.core.compiler import KNOBS, compiler_choice
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import Category
from graphopt.core.plan import Plans, Role
from graphopt.core.utils.terminal import Bar, say
from graphopt.costs.loops.estimate import Estimate, Rules
from graphopt.costs.loops.preset import FILE, Preset, derived, load, save
from graphopt.hardware.measure.environment import has_avx512, processor, variables
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Measuring, Target
from graphopt.hardware.requests import ASSUMED, CUT, MEASURED, READS, CompilerRequest, check_device, request_of
from graphopt.problems.cost_model import CostModel, Prices

HOW = Measuring(device="cpu", threads=1, block_seconds=0.003, blocks=9, spread=0.03, op_seconds=0.3, limit_seconds=120)
TABLE = Path("measured") / "calibration.jsonl"
# Knobs -> the rules of Inductor that they set. The others are accepted, and without effect on a price.
RULES = {"reads_threshold": "reads", "opcount_threshold": "size", "acc_reads_threshold": "gathered"}


def preset_named(name: str | None) -> Preset:
    """`here`: the machine's own, if measured, else `shipped`. `shipped`: of those that come with graphopt the one for
    vectors as wide as this processor's, and of its maker. Other names as `load`."""
    if name == "here":
        name = None if (cache_dir() / FILE).is_file() else "shipped"
    if name == "shipped":
        wide = "xeon_avx512_torch213" if "Intel" in processor() else "epyc_zen5_avx512_torch213"
        name = wide if has_avx512() else "epyc_zen5_avx2_torch213"
    return load(name)


class Calibrated(CostModel):
    """preset: name of a file that comes with graphopt, or `shipped` (`preset_named`); null: the machine's own.

    Knobs that change arithmetic, not the stored values, are accepted, at no cost. Calls of libraries cost their FLOP.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, preset: str | None) -> None:
        self.name, self.preset = name, preset_named(preset)
        self._estimates: WeakKeyDictionary[Graph, Estimate] = WeakKeyDictionary()

    def price(self, plans: Plans) -> Prices:
        graph, estimate = plans.graph, self.estimate(plans.graph)
        # Products of matrices and convolutions, which no plan changes.
        fixed = float(graph.flops[graph.category == Category.CONTRACTION].sum()) * self.preset.flop * 1e-9
        found: dict[str, float] = {}
        keys = []
        for b in range(len(plans)):
            requests, knobs = request_of(plans, b)
            request = CompilerRequest(requests, {name: choice for name, choice in knobs.items() if name in RULES})
            keys.append(key := request.key(graph))
            if key in found:
                continue
            stored = {name: word == "store" for name, word in requests.items() if word != CUT}
            cut = frozenset(name for name, word in requests.items() if word == CUT)
            changed = {RULES[k.name]: k.values[request.knobs[k.name]] for k in KNOBS if k.name in request.knobs}
            found[key] = estimate.seconds(estimate.made(stored, cut, Rules(**changed)), self.preset)
        return Prices(np.array([found[key] + fixed for key in keys]), np.zeros(len(plans)))

    def estimate(self, graph: Graph) -> Estimate:
        """Of a graph's program, which is lowered once. Raises UserError for graphs that no compiler was asked about."""
        if graph in self._estimates:
            return self._estimates[graph]
        own = compiler_choice(graph)  # None as well where no op has a choice
        if not isinstance(graph.program, bytes):
            raise UserError(
                f"cost=calibrated prices what TorchInductor lowers, and {graph.name} is not: choose dataset=lowered"
            )
        check_device(graph, "cpu", self.name, MEASURED)
        from graphopt.graphs.readers.pytorch.program_file import unpacked_program
        from graphopt.hardware.inductor.loop_reader import loop_program

        names = [] if own is None else [graph.op_names[op] for op in np.flatnonzero(own.free).tolist()]
        self._estimates[graph] = Estimate(loop_program(unpacked_program(graph.program, graph.name), names))
        return self._estimates[graph]


def measured(service: Service, folder: Path) -> Mapping[str, float]:
    """Name of a probe -> seconds of one run. Known probes are neither compiled nor timed again."""
    from graphopt.hardware.inductor.probes import built, probes

    found, every = dict[str, float](), list(probes())
    folder.mkdir(parents=True, exist_ok=True)
    with Bar("measure", len(every)) as bar:
        for probe in every:
            line = service.table.find(f"probe {probe.name}", service.environment)
            if line is None:
                digest, source, program = built(probe, folder)
                payload = {"source": source, "digest": digest, "program": program, "seed": 0}
                line = service.alone(Target("inductor", f"probe {probe.name}", payload))
            found[probe.name] = float(line["seconds"])
            bar.step(probe.name)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt measure calibrate",
                                     description="Measure what operations, reads and loops take here.")  # fmt: skip
    parser.add_argument("--file", type=Path, default=None, help="of the numbers; default: in $GRAPHOPT_CACHE")
    args = parser.parse_args(arguments)
    file = args.file or cache_dir() / FILE
    os.environ.update(variables(1))  # before torch looks at them
    from graphopt.hardware.inductor.probes import EXTENT

    try:
        service = Service(HOW, table=cache_dir() / TABLE, environment=None, name="calibrate")
        preset = derived(measured(service, cache_dir() / "probes"), EXTENT)
        save(file, preset, service.environment, datetime.now(UTC).date().isoformat())
        say(f"{file}: {len(preset.vector)} operations, measured as {service.environment}")
    except (UserError, GraphError) as error:
        say(error, sys.stderr)
        return 1
    return 0
