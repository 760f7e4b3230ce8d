"""Answers of a study of TorchInductor beside its default, as `torch.compile(backend="graphopt")` compares them once:
bits on drawn inputs, and times of one thread, by turns for a moment. The default stays where a bit differs or the
answer is not faster.

`graphopt study pack --unpack results/hardware_unseen /tmp/study` first, then `python benchmarks/compare_answers.py
/tmp/study --evals 0` for answers that were not measured. Answers under declared numerics are left out.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import graphopt
from graphopt.hardware.costs.inductor import NOTHING
from graphopt.hardware.measure.builds import Builds
from graphopt.hardware.measure.target import Failure
from graphopt.hardware.requests import request_of


def main(study: Path, evals: int | None) -> None:
    builds, judged, kept = Builds(1, 600.0), list[float](), list[float]()
    print("| graph | answer | judged | compared | same bits |\n|---|---|---:|---:|---|")
    with TemporaryDirectory() as folder:
        for file in sorted(study.glob("fusion_equal-*/decisions/*.npz")):
            answer = graphopt.load(file)
            if evals not in (None, answer.facts["evals_cap"]) or not isinstance(answer.graph.program, bytes):
                continue
            request, prices = request_of(answer.plan, 0), answer.prices
            judged.append(prices["judged"] / prices["initial"])
            kept.append(1.0)
            if request == NOTHING:
                continue
            program = Path(folder) / f"{answer.graph.hash}.program.json.gz"
            program.write_bytes(answer.graph.program)
            found = builds.ask("compare", {"program": str(program), **request._asdict()}).result()
            if isinstance(found, Failure):
                raise RuntimeError(f"{file}: {found.reason}")
            if found["equal"] and found["ratio"] < 1:
                kept[-1] = judged[-1]
            print(f"| {answer.graph.name} | {answer.facts['algo']} | {judged[-1]:.3f} | {found['ratio']:.3f} | "
                  f"{'yes' if found['equal'] else 'no'} |", flush=True)  # fmt: skip
    for name, ratios in (("as judged", judged), ("after comparing", kept)):
        print(f"{name}: {len(ratios)} answers, {np.exp(np.log(ratios).mean()):.3f} of the default's time, "
              f"{np.greater(ratios, 1.02).sum()} slower than 1.02, the slowest {max(ratios):.2f}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="unpacked")
    parser.add_argument("--evals", type=int, help="only answers of this many evaluations")
    args = parser.parse_args()
    main(args.study, args.evals)
