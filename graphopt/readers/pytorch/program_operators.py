"""Which operators a program file may call, and with what: functions of tensors, with the arguments that they state.

Names stand in lists. The operator's own schema says the rest: an argument of another kind than it states is refused
before the operator sees the argument, since torch takes any number for a layout or a type, and some of them end the
process.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import ceil
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from graphopt.core.graph import GraphError
from graphopt.core.graph_builder import RANK

_ATEN = (
    "__and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__ "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
    "_addmm_activation _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional "
    "_cdist_backward _cdist_forward _chunk_cat _conj _conj_physical _convolution _embedding_bag "
    "_embedding_bag_dense_backward _embedding_bag_forward_only _euclidean_dist _fft_c2c _fft_c2r _fft_r2c "
    "_foreach_abs _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_clamp_max _foreach_clamp_min "
    "_foreach_clone _foreach_copy _foreach_div _foreach_exp _foreach_lerp _foreach_log _foreach_maximum "
    "_foreach_minimum _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_reciprocal _foreach_rsqrt "
    "_foreach_sigmoid _foreach_sign _foreach_sqrt _foreach_sub _foreach_tanh _foreach_zero_ _fused_dropout "
    "_fused_rms_norm _fused_rms_norm_backward _grouped_mm _int_mm _linalg_det _linalg_eigh _linalg_slogdet "
    "_linalg_solve_ex _linalg_svd _log_softmax _log_softmax_backward_data _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _neg_view _pdist_backward "
    "_pdist_forward _prelu_kernel _prelu_kernel_backward _reshape_alias _safe_softmax "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward _scaled_mm "
    "_softmax _softmax_backward_data _to_copy _trilinear _unsafe_index _unsafe_index_put _unsafe_masked_index "
    "_unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa "
    "_upsample_lanczos2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
    "_weight_norm_interface _weight_norm_interface_backward abs acos acosh adaptive_avg_pool1d adaptive_max_pool2d "
    "adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward add addbmm addcdiv addcmul addmm "
    "addmv addr affine_grid_generator alias alias_copy all alpha_dropout amax amin aminmax angle any arange argmax "
    "argmin as_strided as_strided_copy as_strided_scatter asin asinh atan atan2 atanh avg_pool1d avg_pool2d "
    "avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm batch_norm_backward bernoulli binary_cross_entropy "
    "binary_cross_entropy_backward binary_cross_entropy_with_logits bitwise_and bitwise_left_shift bitwise_not "
    "bitwise_or bitwise_right_shift bitwise_xor block_diag bmm broadcast_tensors broadcast_to bucketize cat cauchy "
    "ceil celu channel_shuffle cholesky_inverse cholesky_solve chunk clamp clamp_max clamp_min clip clone col2im "
    "complex conj conj_physical constant_pad_nd contiguous convolution convolution_backward copy copysign cos cosh "
    "cummax cummin cumprod cumsum deg2rad detach diag diag_embed diagonal diagonal_backward diagonal_copy "
    "diagonal_scatter digamma dist div dot dropout elu elu_backward embedding embedding_dense_backward empty "
    "empty_like empty_permuted empty_strided eq erf erfc erfinv exp exp2 expand expand_as expand_copy expm1 "
    "exponential eye fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 "
    "fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 "
    "fft_rfftn fill flip float_power floor floor_divide fmax fmin fmod frac fractional_max_pool2d "
    "fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward frexp full full_like "
    "gather gcd ge gelu gelu_backward geometric geqrf glu glu_backward grid_sampler_2d grid_sampler_2d_backward gt "
    "hann_window hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh "
    "hardtanh_backward heaviside hinge_embedding_loss histc huber_loss huber_loss_backward hypot i0 igamma igammac "
    "im2col imag index index_add index_copy index_fill index_put index_reduce index_select isfinite isin isinf "
    "isnan isneginf isposinf kthvalue layer_norm lcm ldexp le leaky_relu leaky_relu_backward lerp lgamma lift "
    "lift_fresh lift_fresh_copy linalg_cholesky_ex linalg_cross linalg_householder_product linalg_inv_ex "
    "linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp "
    "linalg_pinv linalg_qr linalg_solve_triangular linalg_vector_norm linear linspace log log10 log1p log2 "
    "log_normal log_sigmoid_backward log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logical_and "
    "logical_not logical_or logical_xor logit logit_backward logspace logsumexp lt lu_unpack margin_ranking_loss "
    "masked_fill masked_scatter masked_scatter_backward matmul max max_pool2d_with_indices "
    "max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d "
    "max_unpool3d maximum mean median meshgrid min minimum mish mish_backward mkldnn_rnn_layer mm mode mse_loss "
    "mse_loss_backward mul multi_margin_loss multilabel_margin_loss_forward multinomial mv mvlgamma nan_to_num "
    "nanmedian nansum narrow narrow_copy native_batch_norm native_batch_norm_backward native_dropout "
    "native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm "
    "native_layer_norm_backward ne neg new_empty new_empty_strided new_full new_ones new_zeros nextafter nll_loss "
    "nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward norm normal ones ones_like ormqr "
    "pad_sequence pairwise_distance pdist permute permute_copy pixel_shuffle pixel_unshuffle polar polygamma "
    "positive pow prelu prod rad2deg rand rand_like randint randint_like randn randn_like randperm real reciprocal "
    "reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d "
    "reflection_pad3d_backward relu relu6 remainder renorm repeat replication_pad1d replication_pad1d_backward "
    "replication_pad2d replication_pad2d_backward replication_pad3d reshape resolve_conj resolve_neg roll rot90 "
    "round rrelu rrelu_with_noise_backward rrelu_with_noise_functional rsqrt rsub scalar_tensor scatter scatter_add "
    "scatter_reduce searchsorted select select_backward select_copy select_scatter selu sgn sigmoid "
    "sigmoid_backward sign signbit silu silu_backward sin sinc sinh slice slice_backward slice_copy slice_scatter "
    "smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softmax softplus "
    "softplus_backward softshrink sort special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 "
    "special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
    "special_chebyshev_polynomial_w special_entr special_erf special_erfcx special_gammainc special_gammaincc "
    "special_hermite_polynomial_h special_hermite_polynomial_he special_i0e special_i1 special_i1e "
    "special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 "
    "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtr special_ndtri "
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta split "
    "split_copy split_with_sizes split_with_sizes_copy sqrt square squeeze squeeze_copy stack std std_mean sub sum "
    "t t_copy take tan tanh tanh_backward threshold threshold_backward to topk trace transpose transpose_copy "
    "triangular_solve tril tril_indices triu triu_indices true_divide trunc unbind unbind_copy unfold "
    "unfold_backward unfold_copy uniform unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy "
    "upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward "
    "upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest2d upsample_nearest2d_backward "
    "upsample_nearest3d upsample_trilinear3d upsample_trilinear3d_backward var var_mean vdot view view_as_complex "
    "view_as_complex_copy view_as_real view_as_real_copy view_copy where xlogy zero zeros zeros_like"
)
_PRIMS = (
    "_low_memory_max_pool_offsets_to_indices _low_memory_max_pool_with_offsets _unsafe_index_put_ abs acos acosh "
    "add amax amin as_strided asin asinh atan atan2 atanh bessel_j0 bessel_j1 bitwise_and bitwise_not bitwise_or "
    "bitwise_xor broadcast_in_dim cat ceil clone conj conj_physical convert_element_type cos cosh digamma div empty "
    "empty_permuted empty_strided eq erf erfc erfcx exp exp2 expm1 fill floor fma fmax fmin fmod frexp full "
    "full_like ge gt hypot igamma igammac imag inductor_cvt_e8m0_rceil inductor_force_stride_order "
    "inductor_lookup_seed inductor_rand_eager_offset inductor_rand_eager_offsets inductor_randint inductor_random "
    "inductor_seed inductor_seeds iota isfinite le lgamma log log10 log1p log2 lt maximum minimum mul ndtri ne neg "
    "nextafter normal pow prepare_softmax_online prod real reciprocal remainder reshape rev round rsqrt "
    "scalar_tensor sign signbit sin sinh spherical_bessel_j0 sqrt squeeze sub sum tan tanh trunc uniform var "
    "view_of where xor_sum zeta"
)
_NAMES: dict[str, frozenset[str]] = {
    "aten": frozenset(_ATEN.split()),
    "prims": frozenset(_PRIMS.split()),
    "mkldnn": frozenset(("_convolution_pointwise", "_convolution_transpose_pointwise", "_linear_pointwise")),
    "mkl": frozenset(("_mkl_linear",)),
}
"""Names without overload; of each also its form in place, whose name ends in `_`."""
NAMESPACES = tuple(_NAMES)
_MOVES = frozenset(("as_strided_", "set_", "resize_"))  # in place, but to other memory
MOST_PARTS = 4096  # results of one operator
_SHORT = re.compile(r"[a-z_]{0,32}", re.ASCII)  # texts are names of modes


def is_allowed(target: OpOverload) -> bool:
    """Whether a program file may call it: it is listed, and makes tensors of tensors, numbers and settings."""
    name, schema = target._opname, target._schema
    listed = _NAMES.get(target.namespace, frozenset())
    in_place = name.endswith("_") and not name.endswith("__") and name not in _MOVES and name[:-1] in listed
    makes = {str(r.real_type) for r in schema.returns}
    return (
        (name in listed or in_place)
        and makes <= {"Tensor", "List[Tensor]"}
        and (bool(makes) or schema.is_mutable)
        and all(not a.is_out and _KIND.fullmatch(str(a.real_type)) for a in schema.arguments)
    )


def check_call(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphError where an argument is not of the kind that the operator states."""
    stated = target._schema.arguments
    named = {a.name: a for a in stated}
    places = [a for a in stated if not a.kwarg_only]
    if len(args) > len(places) or not kwargs.keys() <= named.keys():
        raise GraphError(f"{target} has no such arguments")
    for argument, value in chain(zip(places, args), ((named[name], value) for name, value in kwargs.items())):
        if not _fits(value, str(argument.real_type)):
            raise GraphError(f"argument {argument.name} of {target} is to be {argument.real_type}, not {value!r:.80}")


_LISTED = {"Tensor", "number", "int", "SymInt", "float", "bool", "complex", "str", "ScalarType", "Layout",
           "MemoryFormat", "Device", "Generator"}  # fmt: skip
_KIND = re.compile(rf"(Optional\[)?(List\[)?(Optional\[)?({'|'.join(sorted(_LISTED))})\]*")


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1])
    if kind.startswith("List["):
        inner = kind[5:-1]
        if not isinstance(value, list | tuple):
            return inner != "Tensor" and not inner.startswith("Optional") and _fits(value, inner)  # for all dimensions
        return len(value) <= (MOST_PARTS if "Tensor" in inner else RANK) and all(_fits(v, inner) for v in value)
    return _SCALARS[kind](value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _number(value: Any) -> bool:
    return _whole(value) or isinstance(value, float | complex)


_SCALARS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda v: isinstance(v, Node) or _number(v),
    "number": _number,
    "complex": _number,
    "float": lambda v: _whole(v) or isinstance(v, float),
    "int": _whole,
    "SymInt": _whole,
    "bool": lambda v: isinstance(v, bool),
    "str": lambda v: isinstance(v, str) and _SHORT.fullmatch(v) is not None,
    "ScalarType": lambda v: isinstance(v, torch.dtype),
    "Layout": lambda v: v is torch.strided,
    "MemoryFormat": lambda v: isinstance(v, torch.memory_format),
    "Device": lambda v: isinstance(v, torch.device),
    "Generator": lambda v: False,
}


def check_parts(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphError where an operator would cut a tensor into very many. args: its values, tensors for nodes."""
    if not isinstance(target, OpOverload) or "List[Tensor]" not in {str(r.real_type) for r in target._schema.returns}:
        return
    given = {**dict(zip((a.name for a in target._schema.arguments), args)), **kwargs}
    x = given.get("self")
    if not isinstance(x, torch.Tensor) or not x.dim():
        return
    size = x.shape[given.get("dim", 0)]
    step = given.get("split_size", 1)
    parts = given["chunks"] if "chunks" in given else ceil(size / step) if isinstance(step, int) and step > 0 else 0
    if parts > MOST_PARTS and min(parts, size) > MOST_PARTS:
        raise GraphError(f"{target} makes {parts:,} tensors, more than {MOST_PARTS:,}")
