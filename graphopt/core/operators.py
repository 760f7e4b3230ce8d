"""The operator vocabulary: every reader maps its own operators onto these, every cost model reads them."""

from dataclasses import dataclass
from enum import IntEnum


class Category(IntEnum):
    """How an operator touches its iteration space. Decides the legal fusions."""

    ELEMENTWISE = 0  # one output element per input element, broadcasting allowed
    VIEW = 1  # no kernel: the result is its input read with other indices (reshape, transpose, slice, expand)
    LAYOUT = 2  # moves data without arithmetic (concat, pad, gather, roll)
    REDUCTION = 3  # many input elements per output element (sum, pooling, softmax)
    CONTRACTION = 4  # matrix products and convolutions
    OPAQUE = 5  # not understood, or not fusible (sort, scatter, custom): always stored, nothing inlined into it


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator kind.

    `flop` is FLOP per output element (per input element for reductions); contractions carry their own count.
    `expensive` operators are never duplicated by the compilers' default rule.
    """

    name: str
    category: Category
    flop: float
    expensive: bool = False


def _group(category: Category, flop: float, names: str, expensive: bool = False) -> list[Operator]:
    return [Operator(name, category, flop, expensive) for name in names.split()]


OPERATORS: tuple[Operator, ...] = (
    *_group(Category.OPAQUE, 1.0, "opaque sort topk scatter random", True),
    *_group(Category.ELEMENTWISE, 1.0, "add sub mul maximum minimum abs neg relu compare logical select cast clamp"),
    *_group(Category.ELEMENTWISE, 1.0, "round sign copy fill iota"),
    *_group(Category.ELEMENTWISE, 2.0, "affine"),  # x * scale + shift with per-channel constants (inference batch norm)
    *_group(Category.ELEMENTWISE, 8.0, "div sqrt rsqrt reciprocal remainder", True),
    *_group(Category.ELEMENTWISE, 12.0, "exp log sigmoid silu softplus sin cos", True),
    *_group(Category.ELEMENTWISE, 16.0, "tanh erf gelu pow elu hardswish", True),
    *_group(Category.VIEW, 0.0, "reshape transpose slice split broadcast"),
    *_group(Category.LAYOUT, 0.0, "concat pad gather reverse upsample"),
    *_group(Category.REDUCTION, 1.0, "sum mean amax amin prod argmax pool_max pool_avg cumsum", True),
    *_group(Category.REDUCTION, 8.0, "softmax layer_norm norm_stats lrn", True),
    *_group(Category.CONTRACTION, 2.0, "matmul conv conv_transpose", True),
)

OPERATOR_ID: dict[str, int] = {operator.name: i for i, operator in enumerate(OPERATORS)}
