"""ONNX models by nnsmith, for `foreign.py`: `python nnsmith_models.py FOLDER --count 1000`.

It runs in an environment of its own, which has nnsmith, onnx and torch (`pip install nnsmith onnx torch`). nnsmith
0.1.0 exports as torch did by default in its days; later versions of torch have to be asked for that.
"""

import argparse
import random
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch

EXPORT = torch.onnx.export


def _as_it_was(*args: Any, **settings: Any) -> Any:
    return EXPORT(*args, dynamo=False, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000, help="of seeds, from 0")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.onnx.export = _as_it_was

    from nnsmith.abstract.extension import activate_ext
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset
    from nnsmith.util import set_seed

    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    operators = auto_opset(kind, None)  # those that can be exported; found once, in nnsmith's cache
    activate_ext(opset=operators, factory=None)
    for seed in range(args.count):
        set_seed(seed)
        made = model_gen(opset=operators, method="symbolic-cinit", seed=seed, max_elem_per_tensor=2**13,
                         max_nodes=random.choice((3, 5, 10, 15)), timeout_ms=8000, rank_choices=None,
                         dtype_choices=None)  # fmt: skip
        model = kind.from_gir(made.make_concrete())
        model.refine_weights()
        onnx.save(model.native_model, args.folder / f"m{seed:05d}.onnx")


if __name__ == "__main__":
    main()
