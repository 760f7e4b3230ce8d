"""Program files: what is read is written and read again, and runs on inputs made for it."""

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.fx_reader import read_fx
from graphopt.graphs.readers.pytorch.program_file import (
    FxProgram,
    describe,
    load_program,
    make_inputs,
    packed_program,
    save_program,
)
from graphopt.graphs.readers.pytorch.program_operators import is_allowed, operator_of
from graphopt.hardware.program_run import Session

from ..judge import Format, Wrong
from ..mutate import Draw, damaged, damaged_bytes, gzip_bomb, json_text, nasty, number

SMALL = 10**6  # elements of all values: more is not run


@lru_cache(maxsize=1)
def sound() -> str:
    """A small program with a constant, indices, several results of one operator, and a write into an input."""
    table = torch.tensor([[0.5, 2.0, -1.0]])

    def run(x: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        best, place = torch.topk(x * table, 2)
        x.copy_(torch.where(mask, x, x.clamp(-0.25)))
        return [best.to(torch.float64).t(), place, x[index].sum(0, keepdim=True), x.contiguous()]

    inputs = [torch.randn(4, 3), torch.tensor([3, 0]), torch.ones(4, 1, dtype=torch.bool)]
    gm = make_fx(run, tracing_mode="real")(*[t.clone() for t in inputs])
    return gzip.decompress(packed_program(FxProgram(gm, tuple(map(describe, inputs))))).decode()


def write(rng: Draw, folder: Path) -> Path:
    file = folder / "p.program.json.gz"
    content = gzip.compress(json_text(damaged(rng, json.loads(sound()))).encode(errors="surrogatepass"))
    if rng.random() < 0.1:
        content = damaged_bytes(rng, content)
    file.write_bytes(gzip_bomb() if rng.random() < 0.02 and not rng.sound else content)
    return file


def read(file: Path) -> None:
    program = load_program(file)
    round_trip(program, file)
    values = [value for node in program.gm.graph.nodes for value in tensors_of(node.meta.get("val"))]
    if sum(value.numel() for value in values) < SMALL:
        program.gm(*make_inputs(program.inputs, 0))


def round_trip(program: FxProgram, file: Path) -> None:
    """The program is the same after another file of it."""
    save_program(file.with_name("again.program.json.gz"), program)
    if packed_program(load_program(file.with_name("again.program.json.gz"))) != packed_program(program):
        raise Wrong("the program changes on its way through a file")


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors that a node makes."""
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in tensors_of(part)]
    return [value] if isinstance(value, torch.Tensor) else []


PROGRAMS = (Format("program", write, read),)


# --- One operator of torch, built: every operator of the namespaces that a file may name, listed or not, with arguments
# of the kinds that its schema states, odd ones among them.


SPACES = ("aten", "prims", "inductor", "mkldnn", "mkl", "onednn")
_DTYPES = ("float32", "float32", "float32", "int64", "bool", "float64", "float16", "bfloat16", "int32", "uint8",
           "complex64")  # fmt: skip
_SHAPES: tuple[list[int], ...] = (
    [], [1], [3], [4], [2, 3], [3, 3], [4, 4], [1, 3], [2, 3, 4], [1, 4, 5, 5], [2, 4, 5, 5], [4, 4, 3, 3],
    [2, 3, 4, 4, 4], [0], [0, 3], [2, 0, 4],
)  # fmt: skip
_HUGE: tuple[list[int], ...] = ([2**31], [2**20, 2**20], [2**40, 0], [1] * 64, [1, 4, 2**20, 1])
_WHOLE = (0, 0, 1, 1, 2, 3, -1, -2, 4, 5, 64, -64, 10**6, 2**31, 2**62, 2**63 - 1, -(2**63))
_WORDS = ("none", "tanh", "mean", "sum", "prod", "amax", "floor", "trunc", "ij", "relu", "linear", "a", "ij,jk->ik",
          "L")  # fmt: skip


@lru_cache(maxsize=1)
def operators() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of those that a file may call, and of all others."""
    names = {f"{s.name.replace('::', '.')}.{s.overload_name or 'default'}" for s in torch._C._jit_get_all_schemas()}
    listed, others = [], []
    for name in sorted(names):
        if name.startswith(tuple(f"{space}." for space in SPACES)):
            try:
                (listed if is_allowed(operator_of(name)) else others).append(name)
            except GraphError:
                others.append(name)
    return tuple(listed), tuple(others)


def _tensor(rng: Draw, made: list[dict[str, Any]]) -> dict[str, str]:
    """An input: one that is there already, mostly of the same shape, or another."""
    if made and rng.random() < 0.3:
        return {"node": rng.choice(made)["name"]}
    if made and rng.random() < 0.6:
        shape = rng.choice(made)["shape"]
    else:
        shape = rng.choice(_HUGE if rng.random() < 0.05 else _SHAPES)
    stride, step = [], 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(size, 1)
    dtype = made[0]["dtype"] if made and rng.random() < 0.6 else rng.choice(_DTYPES)
    small = dtype in ("int64", "int32", "uint8", "bool")
    numbers = rng.choice(([0.0, 1.0], [0.0, 3.0], [-2.0, 1000.0])) if small else [0.0, 1.0]
    fill = "uniform" if small or dtype == "complex64" else "normal"
    made.append({"name": f"x{len(made)}", "shape": list(shape), "stride": stride, "dtype": dtype, "fill": fill,
                 "numbers": numbers, "values": ""})  # fmt: skip
    return {"node": made[-1]["name"]}


def _argument(rng: Draw, kind: str, made: list[dict[str, Any]]) -> Any:
    """A value of the kind, odd now and then; of any other one sometimes."""
    if rng.random() < 0.02:
        return nasty(rng)
    if kind.startswith("Optional["):
        return None if rng.random() < 0.5 else _argument(rng, kind[9:-1], made)
    if kind.startswith("List["):
        return [_argument(rng, kind[5:-1], made) for _ in range(rng.choice((1, 1, 2, 2, 3, 3, 4, 0, 70)))]
    match kind:
        case "Tensor":
            return _tensor(rng, made)
        case "int" | "SymInt":
            return rng.choice(_WHOLE[:8] if rng.random() < 0.8 else _WHOLE)
        case "number" | "float" | "complex":
            return rng.choice((0.5, 1.0, 2, 1e-5, 0.0, number(rng)))
        case "bool":
            return rng.random() < 0.5
        case "str":
            return rng.choice(_WORDS)
        case "ScalarType":
            return {"dtype": rng.choice((*_DTYPES, "quint8", "float8_e4m3fn", "complex128", "bits8"))}
        case "Layout":
            return {"layout": rng.choice(("strided", "strided", "sparse_coo", "_mkldnn"))}
        case "MemoryFormat":
            return {
                "memory_format": rng.choice(
                    ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
                )
            }
        case "Device":
            return {"device": rng.choice(("cpu", "cpu", "cpu:0", "cuda:0", "meta"))}
    return None


def built(rng: Draw) -> dict[str, Any]:
    """The content of a program file."""
    listed, others = operators()
    name = "aten.relu.default" if rng.sound else rng.choice(listed if rng.random() < 0.85 else others)
    schema: Any = getattr(torch.ops, name.split(".")[0])
    for part in name.split(".")[1:]:
        schema = getattr(schema, part, None)
    made: list[dict[str, Any]] = []
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if rng.sound:
        args.append(_tensor(Draw("sound", 0), made))
    for argument in schema._schema.arguments if schema is not None and not rng.sound else ():
        if argument.has_default_value() and rng.random() < 0.6:
            break
        value = _argument(rng, str(argument.real_type), made)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    nodes: list[dict[str, Any]] = [{"name": x["name"], "op": "placeholder", "target": x["name"]} for x in made]
    nodes.append({"name": "y", "op": "call_function", "target": name, "args": args, "kwargs": kwargs, "strides": None})
    results = schema._schema.returns if schema is not None else ()
    several = len(results) > 1 or (results and str(results[0].real_type) == "List[Tensor]")
    if several:
        nodes.append({"name": "z", "op": "call_function", "target": "getitem", "args": [{"node": "y"}, 0], "kwargs": {},
                      "strides": None})  # fmt: skip
    nodes.append({"name": "output", "op": "output", "target": "output", "kwargs": {},
                  "args": [{"tuple": [{"node": "z" if several else "y"}]}]})  # fmt: skip
    inputs = [{key: value for key, value in x.items() if key != "name"} for x in made]
    return {"format": 1, "phase": "inference", "donated": [], "inputs": inputs, "constants": {}, "nodes": nodes,
            "visible": [], "strides": None}  # fmt: skip


def write_built(rng: Draw, folder: Path) -> Path:
    file = folder / "p.program.json.gz"
    file.write_bytes(gzip.compress(json.dumps(built(rng)).encode(errors="surrogatepass")))
    return file


def read_built(file: Path) -> None:
    """It is read as from a file, comes back from another, becomes a graph, and is run as `cost=live_bytes` does."""
    program = load_program(file)
    round_trip(program, file)
    if sum(value.numel() for node in program.gm.graph.nodes for value in tensors_of(node.meta.get("val"))) < SMALL:
        graph = read_fx(
            program.gm.graph, name="p", family="p", weights=0, program=packed_program(program), keep_writes=True
        )
        Session(graph, "cpu", 1)


PROGRAM_OPERATORS = (Format("program_operator", write_built, read_built),)
