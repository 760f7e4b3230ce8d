"""Which answers of a study of TorchInductor give other bits than its default, on drawn inputs and one thread.

`graphopt study pack --unpack results/hardware_fusion /tmp/study; python benchmarks/same_bits.py /tmp/study`. Answers
under declared numerics are left out.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import graphopt
from graphopt.hardware.costs.inductor import NOTHING
from graphopt.hardware.measure.kinds.torch_kinds import compare_request
from graphopt.hardware.requests import request_of


def main(study: Path) -> None:
    torch.set_num_threads(1)
    asked, other = 0, list[str]()
    with TemporaryDirectory() as folder:
        for file in sorted(study.glob("fusion_equal-*/decisions/*.npz")):
            answer = graphopt.load(file)
            request = request_of(answer.plan, 0)
            if request == NOTHING or not isinstance(answer.graph.program, bytes):
                continue
            program = Path(folder) / f"{answer.graph.hash}.program.json.gz"
            program.write_bytes(answer.graph.program)
            asked += 1
            if not compare_request({"program": str(program), **request._asdict()})["equal"]:
                other.append(answer.graph.name)
                print(f"{answer.graph.name}: {file.name}", flush=True)
    print(f"{len(other)} of {asked} answers give other bits, about {len(set(other))} graphs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="unpacked")
    main(parser.parse_args().study)
