"""Why a torch module could not be traced, in one sentence: the cause, the line of code, and the remedy."""

import logging
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphopt.core.graph import GraphError

_TORCH, _OURS, _PYTHON = (f"{Path(file).parents[up]}{os.sep}" for file, up in
                          ((torch.__file__, 0), (__file__, 3), (traceback.__file__, 0)))  # fmt: skip
_LONGEST = 300  # characters of another's message

# Ops that look at values, in a user's words.
_READS_VALUES = {
    "_local_scalar_dense": "a number read from a tensor (`.item()`, `.tolist()`, `int()`, or a tensor in an `if`)",
    "nonzero": "`nonzero` (or one-argument `torch.where`, or a boolean mask as an index)",
    "_unique2": "`unique`",
    "unique_dim": "`unique`",
    "unique_consecutive": "`unique_consecutive`",
}


def complaint(error: BaseException) -> str:
    """One sentence about an error met while a module was traced."""
    if isinstance(error, GraphError):
        return str(error)
    return f"the module cannot be traced: {_sentence(error)}"


def _sentence(error: BaseException) -> str:
    kind, place = type(error).__name__, _place(error)
    if "DataDependent" in kind or "DynamicOutputShape" in kind or "GuardOn" in kind:
        return (f"its shapes or branches depend on values: {_culprit(error)}{place}; give a module whose shapes follow "
                "from its inputs', for example all experts on all rows and a mask as a factor, three-argument "
                "`torch.where`, or fixed counts")  # fmt: skip
    kind, text, place = (
        _of_dynamo(error) if type(error).__module__ == "torch._dynamo.exc" else (kind, str(error), place)
    )
    text = " ".join(text.split())
    if "HigherOrderOperator" in text:
        name = text.partition("HigherOrderOperator ")[2].split(" ")[0]
        return f"torch's control flow or fused operator {name!r}{place} has no plain form; call it by tensor operators"
    if "more than 1 value per channel when training" in text:
        place += "; gradients are taken in training mode, so give inputs of two or more rows"
    text = text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " ..."
    said = text if kind == GraphError.__name__ else f"{kind}: {text}"
    return f"{said}{place}" if text else f"{kind}{place}"


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_FAKE_CALL = re.compile(r"\): got (\w+)\((['\"])(.*)\2\)\n", re.DOTALL)  # an operator that failed with fake tensors
_BACKEND = re.compile(r"raised:\n(\w+): (.*?)(?:\n|$)")  # the exception behind torch.compile


def _of_dynamo(error: BaseException) -> tuple[str, str, str]:
    """Kind, message and place of an error of torch.compile: or of the error behind it, with an advised setting."""
    text, _, code = str(error).partition("\nfrom user code:")
    own = [frame for frame in _FRAME.findall(code) if _is_of_the_user(frame[0])]
    place = f" (line {own[-1][1]} of {own[-1][0]}, in {own[-1][2]})" if own else _place(error)
    if (fake := _FAKE_CALL.search(text)) is not None:
        return fake[1], fake[3], place
    if (inner := _BACKEND.search(text)) is not None:
        return inner[1], inner[2], place
    said, *hints = text.split("\n  Hint: ")
    setting = next((f" {hint.partition(chr(10))[0]}" for hint in hints if hint.startswith("Set torch.")), "")
    return type(error).__name__, said.replace("\n  Explanation:", ":") + setting, place


def _culprit(error: BaseException) -> str:
    """The op that looks at values."""
    func: Any = getattr(error, "func", None)
    name = getattr(func, "_opname", "")
    return _READS_VALUES.get(name, f"`{name}`" if name else " ".join(str(error).split())[:_LONGEST])


def _place(error: BaseException) -> str:
    """The innermost line of code that is neither torch's nor Python's nor ours, and its function."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_the_user(frame.filename)]
    return f" (line {own[-1].lineno} of {own[-1].filename}, in {own[-1].name})" if own else ""


def _is_of_the_user(file: str) -> bool:
    """Installed packages may lie within Python's own folder."""
    pythons = file.startswith(_PYTHON) and "site-packages" not in file
    return not (pythons or file.startswith((_TORCH, _OURS, "<")))


def refuse_what_cannot_be_called(module: nn.Module) -> None:
    """Raises GraphError for modules that hide their operators or their shapes."""
    if isinstance(module, torch.jit.ScriptModule):
        raise GraphError("the module is TorchScript; give the nn.Module that it was made from")
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise GraphError(f"the module is wrapped in {type(module).__name__}; give what it wraps, its `.module`")
    for name, weight in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(weight):
            raise GraphError(f"parameter {name!r} has no shape yet; call the lazy module once before it is returned")
        if weight.is_quantized or weight.layout != torch.strided:
            raise GraphError(f"parameter {name!r} is quantised or sparse; give it as a plain tensor")
    for name, part in module.named_modules():
        if type(part).__module__.startswith("torch.ao.nn.quantized"):
            raise GraphError(f"{name or 'the module'} is a packed quantised module; give the one before quantisation")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the tracebacks that torch logs where a fake operator fails: the error says it. Without the names of
    packages that torch.onnx does not find."""
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch._dynamo", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
