"""A backend for GraphNet's harness (arXiv 2510.24035), which calls it on a module and times the result.

    registry["graphopt"] = graphopt.backends.graphnet.GraphoptBackend

The result is TorchInductor's code under decisions, as `torch.compile(backend="graphopt")` carries them out.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import graphopt
from graphopt.core.errors import UsageError

EVALS = 12  # plans that are compiled and timed for each graph
SETTINGS = ("decisions", "evals", "numerics")


class GraphoptBackend:
    """config: `decisions`, a folder of decision files that are carried out; or `evals`, how many plans the first call
    compiles and times (12), and `numerics`: `equal`, results stay the same bit for bit, or `close`. Raises UsageError
    where it has another key."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = dict(config or {})
        if unknown := sorted(self.config.keys() - {*SETTINGS}):
            raise UsageError(f"the backend graphopt takes {', '.join(SETTINGS)}, not {', '.join(unknown)}")

    def __call__(self, model: nn.Module) -> Any:
        """A callable with the arguments of the module."""
        if "decisions" in self.config:
            return torch.compile(model, backend="graphopt", options={"decisions": str(self.config["decisions"])})
        return Searched(model, int(self.config.get("evals", EVALS)), self.config.get("numerics", "equal"))

    def synchronize(self) -> None:
        """Waits until all calls have run."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def version(self) -> str:
        return str(graphopt.__version__)


class Searched(nn.Module):
    """Decides with the inputs of its first call, which takes minutes, and runs by that decision."""

    def __init__(self, model: nn.Module, evals: int, numerics: Any) -> None:
        super().__init__()
        self.model, self.evals, self.numerics = model, evals, numerics
        self.found: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.found is None:
            self.found = graphopt.optimize(self.model, (args, kwargs), task="fusion", cost="inductor",
                                           backward=torch.is_grad_enabled(), budget=self.evals,
                                           numerics=self.numerics)  # fmt: skip
        return self.found(*args, **kwargs)
