"""x-transformers: one transformer with the variations of many papers."""

from collections.abc import Iterator
from typing import Any

import torch

from graphopt.library.catalogue import LibraryModel
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = "x_transformers", "MIT", "https://github.com/lucidrains/x-transformers"

# Variation -> settings of its layers.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "rel-pos": {"rel_pos_bias": True},
    "glu-swish": {"ff_glu": True, "ff_swish": True},
    "rmsnorm": {"use_rmsnorm": True},
    "scalenorm": {"use_scalenorm": True},
    "talking-heads": {"attn_pre_talking_heads": True},
    "one-kv-head": {"attn_one_kv_head": True},
    "grouped-kv": {"attn_kv_heads": 2},
    "memory-kv": {"attn_num_mem_kv": 8},
    "gated-residual": {"gate_residual": True},
    "residual-attention": {"residual_attn": True},
    "macaron": {"macaron": True},
    "sandwich": {"sandwich_coef": 1},
    "qk-norm": {"attn_qk_norm": True},
    "sparse-topk": {"attn_sparse_topk": 8},
    "shift-tokens": {"shift_tokens": 1},
    "gate-values": {"attn_gate_values": True},
    "relu-squared": {"ff_relu_squared": True},
    "sandwich-norm": {"sandwich_norm": True},
    "value-residual": {"add_value_residual": True},
}


def entries() -> Iterator[LibraryModel]:
    for name in VARIANTS:
        for size in ("small", "full"):
            for backward in (False, True):
                yield LibraryModel("x_transformers", name, f"x_{name}", size, backward)


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    from x_transformers import Decoder, TransformerWrapper

    depth = 2 if entry.size == "small" else 8
    with weightless():
        layers = Decoder(dim=256, depth=depth, heads=8, **VARIANTS[entry.model])
        model = TransformerWrapper(num_tokens=1000, max_seq_len=256, attn_layers=layers)
    return model, [torch.zeros(entry.pick(1, 4), entry.pick(256, 128), dtype=torch.long)]
