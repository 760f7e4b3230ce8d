"""Measured plans, as the table of `cost=inductor` keeps them: what was asked, what came of it, and how long it took."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphopt.core.knobs import KNOBS
from graphopt.measure.memo import Line, Memo
from graphopt.ranking.asked import WORDS, Asked

NEAR_OPS, NEAR_SHARE = 3, 0.1  # so many ops, or this share of those that any plan asks about, is near the default


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """features: of the code (`graphopt.inductor.code_features`). ratio: time over the default's, noise its relative
    standard error; seconds: ratio times the default's time."""

    asked: Asked
    digest: str
    features: Mapping[str, float]
    ratio: float
    noise: float
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredGraph:
    """program: key of the graph (`graph_key`). default: what the compiler does unasked; plans: the others that run,
    those of one code once for each thing asked."""

    program: str
    environment: str
    default: MeasuredPlan
    plans: tuple[MeasuredPlan, ...]

    def near(self, plan: MeasuredPlan) -> bool:
        """Whether it asks for little: about few ops, or only about knobs."""
        ops = {name for other in self.plans for name in other.asked.requests}
        return len(plan.asked.requests) <= max(NEAR_OPS, NEAR_SHARE * len(ops))


def measured_graphs(memo: Memo, environment: str | None = None) -> dict[str, MeasuredGraph]:
    """Program -> what was measured of it. environment: one of the memo's; None: that with most requests."""
    lines = [line for line in memo.requests() if _whole(line)]
    here = environment or _most([line["environment"] for line in lines])
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line["environment"] == here:
            found.setdefault(line["program"], []).append(line)
    graphs = (_graph(memo, program, here, of) for program, of in found.items())
    return {graph.program: graph for graph in graphs if graph is not None}


def _graph(memo: Memo, program: str, environment: str, lines: list[Line]) -> MeasuredGraph | None:
    default = next((line for line in lines if not line["requests"] and not line["knobs"]), None)
    if default is None:
        return None
    own = _plan(memo, default, default["digest"])
    plans = (_plan(memo, line, default["digest"]) for line in lines if line is not default)
    return None if own is None else MeasuredGraph(program, environment, own, tuple(p for p in plans if p is not None))


def _plan(memo: Memo, line: Line, default: str) -> MeasuredPlan | None:
    timed = memo.find(line["digest"], line["environment"], default)
    if timed is None or "failure" in timed:
        return None
    asked = Asked(dict(line["requests"]), dict(line["knobs"]))
    return MeasuredPlan(asked, line["digest"], line["features"], timed["ratio"], timed["noise"], timed["seconds"])


def _most(environments: list[str]) -> str:
    return max(environments, key=environments.count, default="")


def _whole(line: Mapping[str, Any]) -> bool:
    """Whether a line, which may come from anybody, says what was asked, and code came of it."""
    requests, knobs = line.get("requests"), line.get("knobs")
    return ("digest" in line and isinstance(line.get("program"), str)
            and isinstance(requests, dict) and all(word in WORDS for word in requests.values())
            and isinstance(knobs, dict) and all(_setting(name, choice) for name, choice in knobs.items()))  # fmt: skip


def _setting(name: str, choice: object) -> bool:
    counts = {knob.name: len(knob.values) for knob in KNOBS}
    return type(choice) is int and 0 <= choice < counts.get(name, 0)
