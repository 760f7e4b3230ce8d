"""`Rewritten`: what tasks decide that rewrite, an equivalent program.

Its file holds the names of the rules that were applied (`rules` of the header, in order) and the programs `original`
and `best` (JSON as bytes, `graphopt.rewrite.ir.program_files`), without the values of weights. Where single rewrites
led there, `steps` of the header says at which places (`graphopt.rewrite.rules.retracing`).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.problems import answer_format
from graphopt.problems.answer_format import Arrays, json_bytes
from graphopt.problems.cost_model import CostModel, Price
from graphopt.problems.solution import Decided, Equality
from graphopt.rewrite.ir.program_files import from_json, to_json
from graphopt.rewrite.ir.terms import Program, runs
from graphopt.rewrite.program_cost import price_of
from graphopt.rewrite.rules.retracing import check_made_of, check_steps

if TYPE_CHECKING:
    from graphopt.rewrite.rewrite_task import RewriteTask


@dataclass(frozen=True, eq=False)
class Rewritten(Decided):
    """The program as it was given and the best one; they share their terms."""

    original: Program
    best: Program
    can_run: bool  # False of programs from files, which hold no weights

    format = "graphopt rewriting 1"

    @classmethod
    def read(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        answer_format.rule_names(header)
        original = from_json(answer_format.read_text(arrays, "original"))
        best = from_json(answer_format.read_text(arrays, "best"), original.terms)
        if not best.opaque.keys() <= original.opaque.keys():
            raise Unreadable("its program has operations that the original lacks")
        best = replace(best, given=original.outputs, opaque=original.opaque)  # which say what they cost
        return cls(header, answer_format.trace(arrays), original, best, can_run=False)

    def departs(self, original: Decided, task: "RewriteTask", equality: Equality) -> str:
        """It starts from the same program, is made of nothing else, and both agree on what nobody could know; where the
        file brings its steps, they lead there by the task's rules."""
        from graphopt.rewrite.equivalence import disagreement

        if not isinstance(original, Rewritten) or to_json(self.original) != to_json(original.original):
            return "it starts from another program than the instance's"
        try:
            check_made_of(self.original, self.best, task.growth)
            if "steps" in self.header:
                check_steps(self.original, self.best, task.rules, self.header["steps"])
        except UserError as error:
            return str(error)
        return disagreement(self.original, self.best, equality)

    def arrays(self) -> Arrays:
        return {"original": json_bytes(to_json(self.original)), "best": json_bytes(to_json(self.best))}

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self.header["rules"])

    def plans(self, graph: Graph, task: "RewriteTask") -> Plans:
        return task.realise(graph, self.best)

    def default_plans(self, graph: Graph, task: "RewriteTask") -> Plans:
        return task.realise(graph, self.original)

    def facts(self) -> list[tuple[str, str]]:
        before, after = (sum(counts.values()) for counts in self.operators())
        return [("ops", f"{before:,} -> {after:,}; {len(self.rules):,} rules applied")]

    def operators(self) -> tuple[Counter[str], Counter[str]]:
        return _operators(self.original), _operators(self.best)

    def price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        return price_of(self.best, cost, plans)

    def default_price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        return price_of(self.original, cost, plans)

    def violations(self) -> list[str]:
        """Results of the rewritten program that differ from the original's, by running both."""
        if not self.can_run or self.best.outputs == self.original.outputs:
            return []
        from graphopt.rewrite.equivalence import differences

        return differences(self.original, self.best)

    def deliver(self, task: "RewriteTask", path: Path) -> list[str] | None:
        """As ONNX, if the graph came so and the task is to."""
        from graphopt.rewrite.io.onnx_call import OnnxOrigin

        if not task.export or not isinstance(self.original.origin, OnnxOrigin):
            return None
        from graphopt.rewrite.io.onnx_export import deliver

        return deliver(self.original, self.best, self.rules, path)


def _operators(program: Program) -> Counter[str]:
    terms = program.terms
    return Counter(terms.operation[t].name for t in program.live() if runs(terms, t))
