"""`graphopt answer bisect MODEL.onnx`: which of ONNX Runtime's optimisers slows a model, or makes its outputs wrong.

An optimiser acts on a model if the optimised model is another one without it. Each of these is left out alone. Outputs
are compared with those of the model without any optimisation; times by turns, in fresh processes, with those of the
model with all. Optimisers that only help together with others are not found.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from graphopt.core.errors import ConfigError, UserError
from graphopt.core.utils.terminal import Bar
from graphopt.hardware.measure.kinds.onnx_kind import random_feeds
from graphopt.hardware.measure.race import BLOCK_SECONDS, LIMIT_SECONDS, ROUNDS, onnx_target
from graphopt.hardware.measure.rounds import timings_of_race
from graphopt.hardware.measure.service import fresh_rounds
from graphopt.hardware.measure.target import Comparing, Failure
from graphopt.rewrite.equivalence import Array, NotFinite, compare
from graphopt.rewrite.io.onnx_call import onnxruntime_session

NAMES = (
    "AttentionFusion", "BiasDropoutFusion", "BiasGeluFusion", "BiasSkipLayerNormFusion", "BiasSoftmaxFusion",
    "CastChainElimination", "CastElimination", "CommonSubexpressionElimination", "ConstantFolding",
    "ConvActivationFusion", "ConvAddActivationFusion", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "DivMulFusion",
    "DynamicQuantizeMatMulFusion", "EmbedLayerNormFusion", "ExpandElimination", "FastGeluFusion",
    "GatherSliceToSplitFusion", "GatherToSliceFusion", "GeluFusionL1", "GeluFusionL2", "GemmActivationFusion",
    "GemmSumFusion", "GemmTransposeFusion", "LabelEncoderFusion", "LayerNormFusionL1", "LayerNormFusionL2",
    "MatMulActivationFusion", "MatMulAddFusion", "MatMulIntegerToFloatFusion", "MatMulScaleFusion",
    "MatMul_BatchNormalization_Fusion", "MatmulTransposeFusion", "NchwcTransformer", "NhwcTransformer",
    "NoopElimination", "NotWhereFusion", "Pad_Fusion", "PreShapeNodeElimination", "QuickGeluFusion",
    "RemoveDuplicateCastTransformer", "ReshapeFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
    "SliceConcatToSpaceToDepthFusion", "TransposeOptimizer", "UnsqueezeElimination",
)  # fmt: skip # as ONNX Runtime 1.32 calls them; a name that a version does not know acts on nothing
PROCESSES = 3
SECONDS = 1.0  # of turns for each model in each process
TOLERANCE = 1e-4  # of the largest magnitude of an output, in single precision
NOISE = 4.0  # times the noise: a larger difference is real, for one of ten optimisers as well


@dataclass(frozen=True)
class WithoutOne:
    """The model with all optimisers but one. ratio: of its time to that with all. noise: relative, of the ratio. error:
    largest difference of outputs from the model without optimisation, of their largest magnitude."""

    name: str
    ratio: float
    noise: float
    error: float

    @property
    def gains(self) -> bool:
        """Whether the model is faster without it."""
        return self.ratio < 1.0 - NOISE * self.noise


@dataclass(frozen=True)
class Optimisers:
    """seconds: of a run with all. error: of all, as of one."""

    seconds: float
    error: float
    tried: tuple[WithoutOne, ...]  # those that act on the model

    @property
    def slows(self) -> WithoutOne | None:
        """Without which the model is fastest, if it is faster."""
        gaining = [one for one in self.tried if one.gains]
        return min(gaining, key=lambda one: one.ratio, default=None)

    @property
    def breaks(self) -> WithoutOne | None:
        """Without which outputs are right, where they are not with all."""
        right = [one for one in self.tried if one.error <= TOLERANCE]
        return min(right, key=lambda one: one.error, default=None) if self.error > TOLERANCE else None


def bisect_optimisers(model: Path, dims: Mapping[str, int]) -> Optimisers:
    """Raises UserError where ONNX Runtime cannot run the model."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigError("ONNX Runtime is not installed; pip install -e '.[onnx]'") from error
    try:
        names = acting(model)
        known, errors = outputs(model, "off", dims), dict[str, float]()
        for name in ("default", *names):
            errors[name] = difference(known, outputs(model, name, dims))
    except Exception as error:  # ONNX Runtime has many
        raise UserError(f"ONNX Runtime cannot run {model}: {' '.join(str(error).split())[:300]}") from error
    default, *others = (onnx_target(model, name, optimisations=name, dims=dims) for name in ("default", *names))
    how = Comparing(device="cpu", threads=1, block_seconds=BLOCK_SECONDS, rounds=ROUNDS, noise=0.0, seconds=SECONDS,
                    limit_seconds=LIMIT_SECONDS, pool="local", workers=1, address=None)  # fmt: skip
    taken = fresh_rounds(default, others, how, PROCESSES)
    if isinstance(taken, Failure):
        raise UserError(f"ONNX Runtime cannot run {model}: {taken.reason}")
    copy, *timings = timings_of_race(taken)
    tried = [WithoutOne(name, timing.ratio, timing.noise, errors[name])
             for name, timing in zip(names, timings, strict=True)]  # fmt: skip
    return Optimisers(copy.seconds, errors["default"], tuple(sorted(tried, key=lambda one: one.ratio)))


def acting(model: Path) -> list[str]:
    """Optimisers without which the optimised model is another one."""
    default, found = _optimised(model, "default"), list[str]()
    with Bar("optimisers", len(NAMES)) as bar:
        for name in NAMES:
            if _optimised(model, name) != default:
                found.append(name)
            bar.step(name)
    return found


def _optimised(model: Path, optimisations: str) -> Counter[tuple[str, ...]]:
    """The operators of the optimised model with their attributes, without names and order, which vary."""
    with TemporaryDirectory(prefix="graphopt-") as folder:
        written = Path(folder) / "optimised.onnx"
        onnxruntime_session(str(model), optimisations=optimisations, written=str(written))
        nodes = onnx.load(written, load_external_data=False).graph.node
    return Counter((node.domain, node.op_type, *sorted(str(a) for a in node.attribute)) for node in nodes)


def outputs(model: Path, optimisations: str, dims: Mapping[str, int]) -> list[Array]:
    """Of random inputs."""
    session = onnxruntime_session(str(model), optimisations=optimisations)
    return list(session.run(None, random_feeds(session, dims)))


def difference(known: list[Array], found: list[Array]) -> float:
    """Infinite where outputs that are not finite hide it."""
    try:
        return compare(known, found, tuple(str(i) for i in range(len(known))), inf)
    except NotFinite:
        return inf
