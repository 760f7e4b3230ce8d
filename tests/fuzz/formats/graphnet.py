"""Samples of GraphNet: programs as text, whose changes ask for everything that Python can do."""

import ast
from pathlib import Path

from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.graphs.graphnet import captured
from graphopt.graphs.readers.pytorch.graphnet.archive import samples_at

from ..judge import Format, Wrong
from ..mutate import CANARY, Draw, damaged_bytes, damaged_text

MODEL = """
import torch

from torch import device

class GraphModule(torch.nn.Module):
    def forward(self, L_x_: torch.Tensor, s0: torch.SymInt, L_self_w_: torch.nn.parameter.Parameter,
                L_self_eps: torch.Tensor, L_edges_: torch.Tensor):
        l_x_ = L_x_
        conv = torch.conv2d(l_x_, L_self_w_, None, (1, 1), (1, 1), (1, 1), 1); l_x_ = None
        eps = L_self_eps.item()
        y = conv * eps + s0 ** 2
        y += 1
        parts = y.chunk(2, dim=1)
        a = parts[0]; b = parts[1]
        a[(slice(None, None, None), 0)] = 0
        zeros = torch.zeros([2, s0 * 4], dtype=torch.float32, device=device(type='cuda', index=0))
        mask = L_edges_[0] != L_edges_[1]
        kept = L_edges_[(slice(None, None, None), mask)]
        z = torch.nn.functional.softmax(a + b, dim=-1).reshape(2, -1)
        return (z, zeros, kept)
"""
WEIGHTS = """
class A:
    name = "L_x_"
    shape = [2, 3, 4, 4]
    dtype = "torch.float32"
    device = "cuda:0"
    mean = 0.1
    std = 1.0
    data = None

class B:
    name = "s0"
    shape = []
    dtype = "torch.int64"
    data = [2]

class C:
    name = "L_self_w_"
    shape = [4, 3, 3, 3]
    dtype = "torch.float32"
    mean = 0.0
    std = 0.5
    min_val = -0.2
    data = None

class D:
    name = "L_self_eps"
    shape = []
    dtype = "torch.float64"
    mean = 1e-05
    std = 0.0
    data = None

class E:
    name = "L_edges_"
    shape = [2, 3]
    dtype = "torch.int64"
    data = [0, 1, 2, 0, 2, 1]
"""
EXPRESSIONS = (
    f"__import__('{CANARY}').fire('text')", f"exec('import {CANARY}')", "eval('1')", "open('/etc/passwd')",
    "().__class__.__bases__[0].__subclasses__()", "torch.__dict__", "torch.os.system('true')", "l_x_.__class__",
    "conv.__reduce_ex__(2)", "torch.load('/dev/zero')", "torch.hub.load('a', 'b')", "torch.Tensor.numpy(conv)",
    "conv.numpy()", "conv.tolist()", "conv.data_ptr()", "conv.apply_(print)", "conv.register_hook(print)",
    "[i for i in range(10**9)]", "(lambda: 1)()", "{**{}}", "f'{conv}'", "'a' * 10**10", "[0] * 10**10",
    "10 ** 10 ** 10", "2 ** 62 * 2 ** 62", "1 << 10**9", "9" * 400, "torch.zeros(10**12, 10**12)",
    "torch.arange(10**18)",
    "conv.expand(10**9, 4, 4, 4)", "torch.empty(10**15).unbind()", "torch.empty(10**9).split(1)",
    "conv.resize_(10**12)",
    "conv.as_strided([10**6], [10**6])", "torch.ops.aten.set_(conv, conv)", "torch.ops.load_library('x')", "yield_",
    "torch._C._nn.linear", "torch.nn.functional.relu(*[conv])", "(y := 1)", "conv if conv else y", "not conv",
    "torch.utils.data", "torch.nn.Module()", "self", "self.forward(conv)", "conv.item()", "conv.nonzero()",
    "torch.tensor(conv.item())", "torch.ops.higher_order.cond(conv, conv, conv)", "-" * 3000 + "1",
    "(" * 80 + "1" + ")" * 80,
    "torch.einsum('ij', conv)", "torch.einsum('...', conv)", "conv.to('cuda:99')", "conv.to('/dev/null')", "1j", "b'x'",
    "torch.lstm(conv, (conv,), (conv,), True, 10**9, 0.0, False, False, True)", "torch.rand(3).item()", "...",
    "torch._C._functorch._vmap_increment_nesting(3, 'error')", "torch._C._functorch._vmap_decrement_nesting()",
    "torch.amp.autocast_mode._enter_autocast('cpu', torch.bfloat16, True, None)",
    "torch.set_default_dtype(torch.int64)",
    "torch.manual_seed(0)", "torch.set_num_threads(10**6)", "conv.view(10**9, 10**9)", "math.sqrt(-1)",
    "torch.inf // 0",
)  # fmt: skip
STATEMENTS = (
    f"import {CANARY}", f"from {CANARY} import fire", "import os", "import torch as os", "while True: pass", "del conv",
    "for i in range(10**9): conv = conv + 1", "with open('x') as f: pass", "raise SystemExit", "return", "global conv",
    "def f(): return f()", "class A: pass", "assert False",
    "try:\n            pass\n        finally:\n            pass",
    "conv.x = 1", "torch.relu = 1", "conv[10**30] = conv", "(conv,) = conv", "a, *b = parts", "lambda: 0", "await conv",
    "x: int = 1", "nonlocal y", "conv @= conv", "pass", "yield conv", "if conv: pass",
    "match conv:\n            case _: pass",
)  # fmt: skip


def write(rng: Draw, folder: Path) -> Path:
    model, weights = MODEL, WEIGHTS
    if not rng.sound:
        for _ in range(rng.choice((1, 1, 2))):
            what = rng.random()
            if what < 0.5:
                model = _replaced(rng, model)
            elif what < 0.7:
                lines = model.splitlines()
                lines.insert(rng.randrange(len(lines) // 2, len(lines) + 1), " " * 8 + rng.choice(STATEMENTS))
                model = "\n".join(lines)
            elif what < 0.85:
                model = damaged_text(rng, model)
            else:
                weights = damaged_text(rng, weights)
    sample = folder / "sample"
    sample.mkdir(exist_ok=True)
    content = model.encode(errors="surrogatepass")
    (sample / "model.py").write_bytes(damaged_bytes(rng, content) if rng.random() < 0.03 else content)
    (sample / "weight_meta.py").write_text(weights, errors="replace")
    return sample


def _replaced(rng: Draw, source: str) -> str:
    """An expression of the program is another one."""
    try:
        inner = [node for node in ast.walk(ast.parse(source).body[-1]) if isinstance(node, ast.expr)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return damaged_text(rng, source)
    node, lines = rng.choice(inner), source.splitlines(keepends=True)
    if node.end_lineno != node.lineno:
        return damaged_text(rng, source)
    line = lines[node.lineno - 1].encode()
    put = rng.choice(EXPRESSIONS).encode()
    lines[node.lineno - 1] = (line[: node.col_offset] + put + line[node.end_col_offset :]).decode()
    return "".join(lines)


def read(sample: Path) -> None:
    try:
        ((name, files),) = samples_at(str(sample)).items()
        graph = captured(files(), name, backward=False)
    except GraphError as error:
        raise UserError(str(error)) from None
    if graph.num_ops < 1 or graph.tensor_bytes.min(initial=0) < 0:
        raise Wrong("a graph without ops")


GRAPHNET = (Format("graphnet", write, read),)
