"""What can be timed: each kind made ready in this process, run, and seen to compute what it should."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from graphopt.graphs.readers.pytorch.program_file import FxProgram, describe, save_program
from graphopt.hardware.measure.kinds.onnx_kind import load_onnx
from graphopt.hardware.measure.kinds.torch_kinds import (
    compare_request,
    flush_request,
    fork_of,
    load_eager,
    load_inductor,
    load_program_file,
    payload_of,
    runner_of,
)
from graphopt.rewrite.equivalence import random_inputs
from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.ir.execution import Executor
from graphopt.rewrite.ir.program_builder import ProgramBuilder, with_random_weights


def test_what_a_run_changes_is_put_back_before_the_next() -> None:
    """A step that multiplies by 1.5 in place: the numbers would be infinite after 220 runs."""
    seen, weights, untouched = list[float](), torch.full((4,), 2.0), torch.ones(3)

    def step(given: list[Tensor]) -> None:
        seen.append(float(given[0][0]))
        given[0].mul_(1.5)
        given.clear()

    runner = runner_of(step, [weights, untouched])
    assert runner.reset is not None
    for _ in range(500):
        runner.reset()
        runner.run()
    assert set(seen) == {2.0} and len(seen) == 501


def test_what_changes_nothing_is_run_without_care() -> None:
    def call(given: list[Tensor]) -> Tensor:
        (x,) = given
        given.clear()
        return x + 1

    x = torch.tensor([1.0, float("nan")])  # a NaN is no change
    runner = runner_of(call, [x])
    assert runner.reset is None
    assert runner.run()[0] == runner.run()[0] == 2.0


def saved(folder: Path, function: Any, *inputs: Tensor) -> str:
    """The path of a program's file."""
    path = folder / "p.program.json.gz"
    save_program(path, FxProgram(make_fx(function)(*inputs), tuple(map(describe, inputs))))
    return str(path)


def test_an_fx_program_is_run_on_what_its_file_says(tmp_path: Path) -> None:
    program = saved(tmp_path, lambda w, g: [w.mul_(0.5).add_(g)], torch.randn(8), torch.randn(8))
    runner = load_eager({"program": program, "seed": 0}, "cpu")
    assert runner.reset is not None  # an optimiser's step
    runs = []
    for _ in range(3):
        runner.reset()
        runs.append(runner.run()[0].clone())
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_a_generated_module_is_called_with_a_list_that_it_may_empty(tmp_path: Path) -> None:
    program = saved(tmp_path, lambda a, b: [a + b], torch.randn(8), torch.randn(8))
    (tmp_path / "made.py").write_text("def call(args):\n    a, b = args\n    args.clear()\n    return (a + b,)\n")
    payload = {"source": str(tmp_path / "made.py"), "digest": "made", "program": program}
    made = load_inductor({**payload, "seed": 3}, "cpu")
    eager = load_eager({"program": payload["program"], "seed": 3}, "cpu")
    assert torch.equal(made.run()[0], eager.run()[0]) and torch.equal(made.run()[0], eager.run()[0])


def test_bits_are_of_results_and_of_inputs_that_the_caller_keeps(tmp_path: Path) -> None:
    def bits(factor: float, donated: list[int]) -> str:
        def call(given: list[Tensor]) -> list[Tensor]:
            given[1].mul_(factor)
            return [given[0] + 1]

        return runner_of(call, [torch.ones(4), torch.ones(4)], donated).bits

    assert bits(2.0, [1]) == bits(3.0, [1]) != bits(2.0, []) != bits(3.0, [])


@pytest.mark.parametrize(("dtype", "equal"), [(torch.float32, True), (torch.bfloat16, False)])
def test_a_value_of_16_bits_is_rounded_between_kernels(tmp_path: Path, dtype: torch.dtype, equal: bool) -> None:
    program = saved(tmp_path, lambda x: [(x * 1.1 + 0.3) * 0.7], torch.randn(64, dtype=dtype))
    found = compare_request({"program": program, "requests": {"mul": "cut"}, "knobs": {}})
    assert found["equal"] == equal and 0.1 < found["ratio"] < 10


def test_denormal_numbers_are_flushed_in_one_fork_alone(tmp_path: Path) -> None:
    program = saved(tmp_path, lambda x: [x * 1e-20], torch.full((64,), 1e-20))
    given: dict[str, Any] = {"program": program, "requests": {}, "knobs": {}}
    payload = payload_of(given)
    assert fork_of(payload).bits == fork_of(payload).bits != fork_of(payload, flush=True).bits
    assert 0.01 < flush_request(given)["ratio"] < 10 and not torch.equal(torch.tensor(1e-20) * 1e-20, torch.tensor(0.0))


def test_a_rewriting_program_runs_in_torch_and_in_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    b = ProgramBuilder()
    program = b.build(b.op("relu", inputs=(b.linear(b.input((4, 8)), 6),)))
    save_onnx(with_random_weights(program, 0), tmp_path / "p.onnx")
    payload = {"path": str(tmp_path / "p.onnx"), "dims": {}}
    (ours,) = load_program_file(payload, "cpu").run()
    inputs = random_inputs(program, np.random.default_rng(0))
    (known,) = Executor(with_random_weights(program, 0))(inputs)
    np.testing.assert_allclose(ours, known, rtol=1e-5)
    for optimisations in ("default", "off"):
        (theirs,) = load_onnx({**payload, "optimisations": optimisations}, "cpu").run()
        np.testing.assert_allclose(theirs, known, rtol=1e-5, atol=1e-6)
