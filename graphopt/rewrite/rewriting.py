"""Rewriting: which of the equivalent programs runs."""

import numpy as np

from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.core.utils.marks import AtLeastOne, Cap
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.rewrite_problem import RewriteTask
from graphopt.rewrite.rules.parsing import load_rules
from graphopt.rewrite.rules.rule import RuleSet


class Rewriting(RewriteTask):
    """Programs that verified rules lead to. They run on the machine's first device, fused as the compiler does by
    default.

    rules: packaged rule files. growth: programs of more than this many times the original's ops are not looked at (TASO
    and X-RLflow: 2). max_*: caps on the default fusion's kernels, for cost models that fuse. export: write the best
    program of a graph that came from an ONNX file as an ONNX model.
    """

    def __init__(self, *, name: str, machine: Machine, rules: list[str], growth: AtLeastOne, max_ops: Cap,
                 max_inputs: Cap, max_duplicates: Cap, export: bool) -> None:  # fmt: skip
        self.name, self.machine, self.growth, self.export = name, machine, growth, export
        self.rules: RuleSet = load_rules(*rules)
        self._limits = KernelLimits(max_ops, max_inputs, max_duplicates)

    def initial(self, graph: Graph) -> Program:
        return program_of(graph)

    def realise(self, graph: Graph, program: Program) -> Plans:
        rewritten = graph_of(program, name=graph.name, family=graph.family)
        inline = default_inline(rewritten, self._limits)[None]
        return Plans(rewritten, np.zeros(inline.shape, np.int16), np.zeros(inline.shape), inline)
