"""What computing activations again costs and saves when steps run for real: under TorchInductor and op by op, at each
budget, ours, torch's own solver, and plain eager autograd.

`python benchmarks/recompute.py ROWS [--only unet]` runs one forward and backward pass of ten modules in fresh processes
of one thread. ROWS is a file of JSON lines; a second call goes on where the first stopped. `--figures` prints a table.
peak: bytes that one step holds at its worst moment beside what it began with, by torch's own record of allocations.
time: CPU time over that of eager autograd, by turns in the same process. error: the largest difference of a gradient
from float64 over its largest value; the same of eager autograd stands beside.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from graphopt.core.utils.terminal import Bar

BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05)
WAYS = ("inductor", "inductor_torch", "eager")  # ours, torch's solver, ours op by op
TURNS = 7
LEAST = 0.001  # relative, of a peak that counts as risen


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Down(nn.Module):
    """A U-Net's level: half the size and twice the channels inside, what comes out beside what came in."""

    def __init__(self, channels: int, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.down = inner, nn.Conv2d(channels, 2 * channels, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(2 * channels, channels, 2, 2), conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(torch.cat([x, self.up(self.inner(self.down(x)))], 1))
        return result


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.out = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(nn.functional.silu(self.gate(x)) * self.up(x))
        return result


class Recurrent(nn.Module):
    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.cell, self.steps = nn.Linear(2 * width, 2 * width), steps

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x)
        for _ in range(self.steps):
            gate, value = self.cell(torch.cat([x, state], -1)).chunk(2, -1)
            state = torch.sigmoid(gate) * torch.tanh(value) + (1 - torch.sigmoid(gate)) * state
        return state


class Transposed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x.transpose(1, 2)).transpose(1, 2)
        return result


def conv(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(4, after), nn.SiLU())


def attention(causal: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, nn.functional.gelu, batch_first=True, norm_first=causal)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def mlp(width: int, wide: int) -> nn.Module:
    return Residual(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))


def mixer() -> nn.Module:
    return nn.Sequential(Transposed(mlp(64, 256)), mlp(96, 384))


def twice(channels: int) -> nn.Module:
    return Residual(conv(channels, channels), conv(channels, channels))


def convnext() -> nn.Module:
    mix = nn.Conv2d(32, 32, 7, 1, 3, groups=32)
    return Residual(mix, nn.GroupNorm(1, 32), nn.Conv2d(32, 128, 1), nn.GELU(), nn.Conv2d(128, 32, 1))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(*(mlp(128, 512) for _ in range(4))), (256, 128)),
    "gated": (lambda: nn.Sequential(*(Residual(nn.RMSNorm(128), Gated(128)) for _ in range(3))), (256, 128)),
    "encoder": (lambda: attention(False), (4, 128, 64)),
    "decoder": (lambda: attention(True), (4, 128, 64)),
    "mixer": (lambda: nn.Sequential(*(mixer() for _ in range(3))), (8, 64, 96)),
    "vgg": (lambda: nn.Sequential(conv(4, 32), conv(32, 32), nn.MaxPool2d(2), conv(32, 64)), (4, 4, 32, 32)),
    "resnet": (lambda: nn.Sequential(conv(4, 32), *(twice(32) for _ in range(3))), (4, 4, 32, 32)),
    "convnext": (lambda: nn.Sequential(*(convnext() for _ in range(4))), (4, 32, 24, 24)),
    "unet": (lambda: nn.Sequential(conv(4, 16), Down(16, Down(32, conv(64, 64)))), (4, 4, 32, 32)),
    "recurrent": (lambda: Recurrent(128, 12), (64, 128)),
}


def step(module: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradients of one forward and backward pass."""
    for parameter in module.parameters():
        parameter.grad = None
    out = module(x)
    (out * out).mean().backward()
    return [p.grad for p in module.parameters() if p.grad is not None]


def error_of(found: list[Tensor], known: list[Tensor]) -> float:
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, known, strict=True))


def measured(name: str, way: str, budget: float) -> dict[str, Any]:
    from graphopt.hardware.apply import recompute
    from graphopt.hardware.program_run import allocated_peak

    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module, x = make(), torch.randn(shape)
    known = step(copy.deepcopy(module).double(), x.double())
    torch._functorch.config.activation_memory_budget = budget
    if way == "inductor":
        torch._inductor.config.custom_partitioner_fn = recompute.partitioner
    compiled: Any = torch.compile(module, backend=recompute.eager if way == "eager" else "inductor")
    runs = {"ours": lambda: step(compiled, x), "plain": lambda: step(plain, x)}
    plain = copy.deepcopy(module)
    gradients = [g.clone() for g in step(compiled, x)]
    error, usual = error_of(gradients, known), error_of(step(plain, x), known)
    taken: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(TURNS):
        for which, run in runs.items():
            begun = time.thread_time()
            run()
            taken[which].append(time.thread_time() - begun)
    ratio = median(a / b for a, b in zip(taken["ours"], taken["plain"], strict=True))
    del gradients  # the end of what was made before would count
    module.zero_grad()
    plain.zero_grad()
    return {"module": name, "way": way, "budget": budget, "peak": allocated_peak(runs["ours"]), "ratio": ratio,
            "plain_peak": allocated_peak(runs["plain"]), "error": error, "plain_error": usual}  # fmt: skip


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def measure_all(file: Path, only: list[str]) -> None:
    done = {(row["module"], row["way"], row["budget"]) for row in rows_of(file)}
    cells = [(m, w, b) for w in WAYS for m in only for b in BUDGETS if (m, w, b) not in done]
    with Bar("steps", len(cells)) as bar:
        for cell in cells:
            command = [sys.executable, __file__, str(file), "--one", cell[0], cell[1], str(cell[2])]
            said = subprocess.run(command, capture_output=True, text=True, check=False)
            if said.returncode:
                sys.exit(f"{cell}: {said.stderr[-2000:]}")
            with file.open("a") as rows:
                rows.write(said.stdout.splitlines()[-1] + "\n")
            bar.step(" ".join(map(str, cell)))


def figures(file: Path) -> Iterator[str]:
    """A line for each module and way."""
    rows = rows_of(file)
    budgets = " | ".join(f"{budget:g}" for budget in BUDGETS)
    yield f"| module | way | {budgets} | rises | eager autograd | time at {BUDGETS[-1]:g} | error | its error |"
    yield "|---|---|" + "---:|" * (len(BUDGETS) + 5)
    for name, way in product(MODULES, WAYS):
        own = {row["budget"]: row for row in rows if (row["module"], row["way"]) == (name, way)}
        if set(own) == set(BUDGETS):
            peaks, last = [own[b]["peak"] for b in BUDGETS], own[BUDGETS[-1]]
            rises = sum(after > (1 + LEAST) * before for before, after in pairwise(peaks))
            cells = [*(f"{peak / 1e6:.2f}" for peak in peaks), str(rises),
                     f"{last['plain_peak'] / 1e6:.2f}", f"{last['ratio']:.2f}",
                     f"{max(row['error'] for row in own.values()):.1e}", f"{last['plain_error']:.1e}"]  # fmt: skip
            yield f"| {name} | {way} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, metavar="ROWS")
    parser.add_argument("--only", nargs="+", choices=MODULES, default=[*MODULES])
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("MODULE", "WAY", "BUDGET"), help="in this process; prints a row")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.one[0], args.one[1], float(args.one[2]))))
    elif args.figures:
        print("\n".join(figures(args.rows)))
    else:
        measure_all(args.rows, args.only)


if __name__ == "__main__":
    main()
