"""Rules as Python functions that match in classes of equal terms: a loop per node of the pattern.

As compiling.py does for terms; an input that is a pattern is any member of the class with that operator. For
`(relu (conv $s $p none ?x ?w))`:

    def match(roots, index, children, found):
        nt1 = index.get('conv', EMPTY)
        for t0 in roots:
            t1, = children[t0]
            for mt1 in nt1.get(t1, ()):
                p_s, p_p, t2, = operation[mt1].params
                if not (t2 == 'none'): continue
                if not (len(children[mt1]) == 2): continue
                v_x, v_w, = children[mt1]
                found.append((t0, (v_x, v_w, p_s, p_p, )))
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from graphopt.rewrite.rules.conditions import NAMES
from graphopt.rewrite.rules.joining import Found
from graphopt.rewrite.rules.pattern_writing import PatternWriter
from graphopt.rewrite.rules.patterns import Node
from graphopt.rewrite.rules.rule import Rule

Index = Mapping[str, Mapping[int, Sequence[int]]]
MatchAll = Callable[[Sequence[int], Index, Mapping[int, tuple[int, ...]], Found], None]


@cache
def ematcher(rule: Rule, index: int) -> Callable[[Any], MatchAll]:
    """Makes the function that matches a source of a rule at nodes; given what holds types and operations."""
    writer = _Loops(rule, index)
    text = "\n".join(["def make(terms):", " operation = terms.operation", " def match(roots, index, children, found):",
                      *writer.before, "  for t0 in roots:", *writer.lines, " return match"])  # fmt: skip
    space: dict[str, Any] = {**NAMES, "EMPTY": {}}
    exec(compile(text, f"<rule {rule.name}>", "exec"), space)
    made: Callable[[Any], MatchAll] = space["make"]
    return made


def depth(node: Node) -> int:
    """How many nodes stand on one another in a pattern."""
    return 1 + max((depth(i) for i in node.inputs if isinstance(i, Node)), default=0)


class _Loops(PatternWriter):
    """Writes the loops of one source, each node before those below it."""

    def __init__(self, rule: Rule, index: int) -> None:
        self.before = list[str]()
        super().__init__(rule, index, "continue", 3)
        self.write(f"found.append((t0, {self.values}))")

    def node(self, node: Node, at: str) -> list[tuple[Node, str]]:
        """Binds, then loops over the members that input patterns can be."""
        self.params(node.params, f"operation[{at}].params")
        return [(child, self.loop(child, name)) for child, name in self.inputs(node, f"children[{at}]")]

    def loop(self, child: Node, at: str) -> str:
        member = f"m{at}"
        self.before.append(f"  n{at} = index.get({child.operator!r}, EMPTY)")
        self.write(f"for {member} in n{at}.get({at}, ()):")
        self.indent += 1
        return member
