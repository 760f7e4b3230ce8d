"""Whose internals these files know."""

import torch

from graphopt.errors import UserError

KNOWN = ("2.13",)  # versions of torch with which the tests of tests/inductor pass


def check_version() -> None:
    """Raises UserError unless this torch's Inductor is one whose internals are known here."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in KNOWN:
        raise UserError(f"decisions are carried out inside TorchInductor of torch {' and '.join(KNOWN)}, and this is "
                        f"torch {torch.__version__}; install `torch=={KNOWN[-1]}.*`")  # fmt: skip
