"""Models on which rewriting is compared, as programs: the eight of X-RLflow, three more of Tensat, eight of neither.

Each is a function of its sizes; defaults are the published ones, smaller ones are for tests. Those of the papers have
the ops of the published graphs, so neither softmax nor normalisation; the others have both. Weights are random
(`RandomWeights`).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from graphopt.core.graph import GraphError
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.models.published import (
    bert,
    dalle_mini,
    densenet,
    inception_v3,
    lstm,
    mixture,
    mlp_mixer,
    mobilenet_v2,
    nasnet_a,
    nasrnn,
    regnet_x,
    resnet18,
    resnext50,
    shufflenet,
    squeezenet,
    t5,
    transformer_transducer,
    vgg19,
    vit,
)

XRLFLOW = (inception_v3, resnet18, squeezenet, resnext50, bert, dalle_mini, transformer_transducer, vit)
TENSAT = (nasrnn, nasnet_a, vgg19)
FURTHER = (shufflenet, mobilenet_v2, densenet, regnet_x, mlp_mixer, t5, lstm, mixture)
MODELS: dict[str, Callable[..., Program]] = {model.__name__: model for model in (*XRLFLOW, *TENSAT, *FURTHER)}


def build_model(name: str, sizes: Mapping[str, Any]) -> Program:
    """The model of that name; missing sizes have the published value. Raises GraphError with the known names."""
    if name not in MODELS:
        raise GraphError(f"no model {name!r}; there are {', '.join(MODELS)}")
    known = inspect.signature(MODELS[name]).parameters
    for key, value in sizes.items():
        if key not in known:
            raise GraphError(f"model {name} has no size {key!r}; it has {', '.join(known)}")
        if type(value) is not type(known[key].default) or (not isinstance(value, bool) and value < 1):
            kind = "true or false" if isinstance(known[key].default, bool) else "a positive whole number"
            raise GraphError(f"model {name}: {key} must be {kind}, not {value!r}")
    try:
        return MODELS[name](**sizes)
    except ValueError as error:
        raise GraphError(f"model {name} cannot be built with {dict(sizes)}: {error}") from error
