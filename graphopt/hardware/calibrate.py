"""Measures what `cost=calibrated` computes with, on this machine: `graphopt measure calibrate`.

Small programs are compiled by TorchInductor and timed on one pinned core: each operation in loops that are vectorised
and that are not, reductions, reads that do not step by one, copies of growing sizes, the beginning of a loop and of a
kernel. It takes some minutes. What was measured is kept, so that a stopped call goes on where it was. The numbers go
to a file that `cost=calibrated` reads: `calibrated.json` in $GRAPHOPT_CACHE, or what `--file` names.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from graphopt import cache_dir
from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.core.utils.terminal import Bar, say
from graphopt.costs.loops.preset import FILE, derived, save
from graphopt.hardware.measure.environment import variables
from graphopt.hardware.measure.service import Service
from graphopt.hardware.measure.target import Measuring, Target

HOW = Measuring(device="cpu", threads=1, block_seconds=0.003, blocks=9, spread=0.03, op_seconds=0.3, limit_seconds=120)
TABLE = Path("measured") / "calibration.jsonl"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="graphopt measure calibrate",
                                     description="Measure the numbers of cost=calibrated here.")  # fmt: skip
    result.add_argument("--file", type=Path, default=None, help="of the numbers; default: in $GRAPHOPT_CACHE")
    return result


def measured(service: Service, folder: Path) -> Mapping[str, float]:
    """Name of a probe -> seconds of one run. What is known is neither compiled nor timed again."""
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
    args = parser().parse_args(arguments)
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
