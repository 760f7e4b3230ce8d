"""How ATen operators, as they stand after decomposition, map onto graphopt's vocabulary, and which are decomposed. Also
the FLOP of those whose kind does not say it: contractions, Fourier transforms, sums of embeddings.
"""

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category

_aten = torch.ops.aten

# graphopt kind: names of ATen operators without overload. Operators of like cost share a kind (atan, tanh).
_NAMES: dict[str, str] = {
    "reshape": "view _unsafe_view reshape _reshape_alias view_copy squeeze squeeze_copy unsqueeze unsqueeze_copy "
    "view_as_real view_as_real_copy view_as_complex view_as_complex_copy",
    "transpose": "permute permute_copy",
    "slice": "slice select diagonal narrow slice_copy select_copy as_strided real imag",
    "split": "split split_with_sizes split_copy split_with_sizes_copy unbind chunk",
    "broadcast": "expand expand_copy unfold unfold_copy broadcast_to",
    "add": "add",
    "sub": "sub rsub",
    "mul": "mul square",
    "div": "div true_divide",
    "maximum": "maximum fmax",
    "minimum": "minimum fmin",
    "abs": "abs",
    "neg": "neg conj _conj conj_physical _conj_physical resolve_conj _neg_view resolve_neg",
    "relu": "relu",
    "compare": "eq ne lt le gt ge isnan isinf isfinite",
    "logical": "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor "
    "bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__",
    "select": "where threshold_backward masked_fill",
    "affine": "fma",
    "cast": "_to_copy convert_element_type to",
    "clamp": "clamp clamp_min clamp_max hardtanh",
    "round": "round ceil floor trunc",
    "sign": "sign signbit copysign",
    "copy": "clone contiguous copy copy_ lift_fresh_copy lift_fresh complex inductor_force_stride_order",
    "fill": "full fill full_like zeros zeros_like ones ones_like empty empty_like new_full new_zeros new_ones "
    "new_empty scalar_tensor empty_strided new_empty_strided empty_permuted",
    "iota": "arange iota linspace eye _low_memory_max_pool_offsets_to_indices",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "remainder": "remainder fmod",
    "exp": "exp exp2 expm1",
    "log": "log log2 log10 log1p",
    "sigmoid": "sigmoid hardsigmoid sigmoid_backward",
    "silu": "silu",
    "softplus": "softplus",
    "sin": "sin tan asin sinh",
    "cos": "cos acos cosh polar",
    "tanh": "tanh atan atan2 asinh acosh atanh tanh_backward angle",
    "erf": "erf erfc erfinv lgamma digamma",
    "gelu": "gelu",
    "pow": "pow hypot",
    "elu": "elu",
    "hardswish": "hardswish",
    "concat": "cat slice_scatter select_scatter diagonal_scatter roll stack",
    "pad": "constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d",
    "gather": "embedding index gather index_select take _unsafe_index _unsafe_masked_index",
    "reverse": "flip",
    "upsample": "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d "
    "_upsample_nearest_exact2d avg_pool2d_backward upsample_nearest2d_backward upsample_bilinear2d_backward",
    "sum": "sum any all linalg_vector_norm",
    "mean": "mean",
    "amax": "amax max",
    "amin": "amin min",
    "prod": "prod",
    "argmax": "argmax argmin",
    "pool_max": "max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d _low_memory_max_pool_with_offsets",
    "pool_avg": "avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d",
    "cumsum": "cumsum cumprod",
    "norm_stats": "var var_mean std std_mean prepare_softmax_online",
    "matmul": "mm bmm addmm baddbmm _grouped_mm _int_mm _scaled_mm _linear_pointwise _mkl_linear",
    "conv": "convolution convolution_backward _convolution_pointwise",
    "scatter": "scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_put index_put_ "
    "_unsafe_index_put _unsafe_index_put_ _unsafe_masked_index_put_accumulate index_add "
    "max_pool2d_with_indices_backward",
    "sort": "sort",
    "topk": "topk",
    "random": "rand randn randint rand_like randn_like randint_like bernoulli multinomial normal uniform randperm "
    "inductor_seed inductor_seeds inductor_lookup_seed inductor_random inductor_randint",
    "opaque": "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward",
}
KIND: dict[str, str] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
ALIAS = frozenset(("alias", "alias_copy", "detach", "detach_copy", "lift_fresh"))  # results that are their operand
METADATA_ONLY = frozenset(  # they read an operand's shape, never its values
    (*(f"{value}_like" for value in ("full", "zeros", "ones", "empty", "rand", "randn", "randint")),
     *(f"new_{value}" for value in ("full", "zeros", "ones", "empty", "empty_strided")))
)  # fmt: skip

WRITES_INTO = frozenset(("slice_scatter", "select_scatter", "diagonal_scatter"))  # into a uniform base: a padding

# Decomposed besides PyTorch's core set: operators that hide the work of several kernels.
_FURTHER = "_softmax _log_softmax addmv gelu elu leaky_relu native_dropout _scaled_dot_product_flash_attention_for_cpu"
# Core decomposes these into long index arithmetic, and `eye` into counting in types that eager torch cannot count in.
_KEEP = "upsample_nearest2d upsample_nearest1d upsample_bilinear2d eye"


def kind_of(name: str, overload: str, args: tuple[Any, ...]) -> str | None:
    """graphopt kind of the ATen operator `name.overload` called with `args`; None when it has none."""
    if name == "pow" and overload == "Tensor_Scalar":
        return {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal", 2: "mul", 3: "mul"}.get(args[1], "pow")
    if name in ("max", "min") and overload == "other":
        return name + "imum"
    if name == "convolution":
        return "conv_transpose" if args[6] else "conv"
    return KIND.get(name)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for tracing: core ATen, further composites, and our own below, which make fewer and plainer ops."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(get_decompositions([getattr(_aten, name) for name in _FURTHER.split() if hasattr(_aten, name)]))
    for name in _KEEP.split():
        for overload in getattr(_aten, name).overloads():
            table.pop(getattr(getattr(_aten, name), overload), None)
    table[_aten.addmm.default] = _addmm
    table[_aten.native_layer_norm.default] = _layer_norm
    table[_aten.native_group_norm.default] = _group_norm
    table[_aten.native_batch_norm.default] = _batch_norm
    table[_aten._native_batch_norm_legit.default] = _batch_norm
    table[_aten._native_batch_norm_legit.no_stats] = _batch_norm_without_statistics
    table[_aten._native_batch_norm_legit_functional.default] = _batch_norm_functional
    table[_aten._native_batch_norm_legit_no_training.default] = _batch_norm_inference
    table[_aten.convolution_backward.default] = _convolution_backward
    return table


def _addmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = a.mm(b) if alpha == 1 else a.mm(b) * alpha
    return product + (bias if beta == 1 else bias * beta)


def _normalise(x: Any, dims: list[int], eps: float) -> tuple[Any, Any, Any]:
    """(x - mean) / sqrt(variance + eps), mean and reciprocal deviation over `dims`, which stay as 1."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    deviation = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    return centred * deviation, mean, deviation


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(x: Any, shape: list[int], weight: Any, bias: Any, eps: float) -> Any:
    result, mean, deviation = _normalise(x, list(range(x.dim() - len(shape), x.dim())), eps)
    return _scaled(result, weight, bias), mean, deviation


def _group_norm(x: Any, weight: Any, bias: Any, n: int, channels: int, size: int, groups: int, eps: float) -> Any:
    result, mean, deviation = _normalise(x.reshape(n, groups, -1), [2], eps)
    per_channel = [1, channels] + [1] * (x.dim() - 2)
    weight, bias = (None if t is None else t.view(per_channel) for t in (weight, bias))
    return _scaled(result.reshape(x.shape), weight, bias), mean.view(n, groups), deviation.view(n, groups)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """With the batch's own statistics when training; running statistics are not updated."""
    if not training:
        return _batch_norm_inference(x, weight, bias, mean, var, momentum, eps)
    result, batch_mean, deviation = _normalise(x, [0, *range(2, x.dim())], eps)
    per_channel = [1, -1] + [1] * (x.dim() - 2)
    weight, bias = (None if t is None else t.view(per_channel) for t in (weight, bias))
    return _scaled(result, weight, bias), batch_mean.view(-1), deviation.view(-1)


def _batch_norm_without_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    return _batch_norm(x, weight, bias, None, None, True, momentum, eps)


def _batch_norm_functional(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
                           eps: float) -> Any:  # fmt: skip
    return *_batch_norm(x, weight, bias, mean, var, training, momentum, eps), mean, var


def _batch_norm_inference(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    """x * scale + shift with per-channel constants, which the reader folds: two ops."""
    scale = torch.rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    per_channel = [1, -1] + [1] * (x.dim() - 2)
    empty = x.new_empty((0,))
    return x * scale.view(per_channel) + shift.view(per_channel), empty, empty


def _convolution_backward(grad: Any, x: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
                          transposed: bool, output_padding: Any, groups: int, mask: list[bool]) -> Any:  # fmt: skip
    """One op per gradient instead of one for all three, so that each can be fused and placed by itself."""
    if sum(mask) == 1 and not mask[2]:
        return NotImplemented
    call, rest = (
        _aten.convolution_backward.default,
        (None, stride, padding, dilation, transposed, output_padding, groups),
    )
    input_grad = call(grad, x, weight, *rest, [True, False, False])[0] if mask[0] else None
    weight_grad = call(grad, x, weight, *rest, [False, True, False])[1] if mask[1] else None
    bias_grad = grad.sum([0, *range(2, grad.dim())]) if mask[2] else None
    return input_grad, weight_grad, bias_grad


# --- FLOP. Complex numbers count as real arithmetic on pairs: a product is 6 FLOP, a multiply-add of a contraction 8,
# any other elementwise operation or reduction twice the real one's.


_CATEGORY = {name: OPERATORS[i].category for name, i in OPERATOR_ID.items()}


def flops(name: str, kind: str, args: Sequence[Any], operands: Sequence[Any], results: Sequence[Any]) -> float | None:
    """FLOP of the ATen operator `name` on real numbers, 2 per multiply-add; None: the kind's count per element.

    operands, results: values with a `shape`, in the order of the arguments.
    """
    if name.startswith("_fft_"):
        return _fourier(name, args[1], operands[0].shape, results[0].shape)
    if name == "_embedding_bag":  # every row that is looked up is added
        return _numel(operands[1]) * float(operands[0].shape[-1])
    if name.startswith("_scaled_dot_product"):  # query, key: two products forward; these again and three more backward
        backward = name.endswith("_backward")
        query, key = operands[backward : backward + 2]
        return (10.0 if backward else 4.0) * _numel(query) * float(key.shape[-2])
    if _CATEGORY[kind] is not Category.CONTRACTION:
        return None
    first, second = operands[1:3] if name in ("addmm", "baddbmm") else operands[:2]
    if kind == "matmul":
        groups = results[0].shape[0] if name == "_grouped_mm" and len(first.shape) == len(second.shape) == 2 else 1
        return 2.0 * _numel(results[0]) * float(first.shape[-1]) / groups  # groups share the rows that are summed
    if name == "convolution_backward":  # both gradients cost as much as the forward convolution
        weight, transposed = operands[2], bool(args[7])
        rows = second if transposed else first
    else:
        weight, transposed = second, bool(args[6])
        rows = first if transposed else results[0]
    return 2.0 * _numel(rows) / float(rows.shape[1]) * _numel(weight)


def _fourier(name: str, dims: Sequence[int], given: Sequence[int], made: Sequence[int]) -> float:
    """5 N log2 N for every complex transform of N points, half of it with a real side, as FFT benchmarks count."""
    points = made if name == "_fft_c2r" else given
    length = prod(points[d] for d in dims)
    return (5.0 if name == "_fft_c2c" else 2.5) * prod(points) * log2(max(2, length))


def complex_factor(kind: str, tensors: Sequence[Any]) -> float:
    """By how much an operation takes more FLOP than on real numbers."""
    if not any("complex" in str(getattr(t, "dtype", "")) for t in tensors) or _CATEGORY[kind] is Category.OPAQUE:
        return 1.0
    if _CATEGORY[kind] is Category.CONTRACTION:
        return 4.0
    return 6.0 if kind == "mul" else 2.0


def _numel(value: Any) -> float:
    return float(prod(value.shape))
