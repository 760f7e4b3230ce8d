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

Rules of one output are matched again only near classes that changed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.rules.compiling import PatternWriter
from graphopt.rewrite.rules.conditions import NAMES
from graphopt.rewrite.rules.matching import Found, Join, Place
from graphopt.rewrite.rules.rule import Node, Rule

Index = Mapping[str, Mapping[int, Sequence[int]]]
MatchAll = Callable[[Sequence[int], Index, Mapping[int, tuple[int, ...]], Found], None]


@cache
def ematcher(rule: Rule, index: int) -> Callable[[Any], MatchAll]:
    """Makes the function that matches a source of a rule at nodes; given the store of types and operations."""
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


class LoopFinder:
    """The own engine. static: whether rules match at terms that depend on weights alone, too."""

    def __init__(self, rules: Sequence[Rule], classes: TermClasses, *, static: bool) -> None:
        self.classes, self.static = classes, static
        view: Any = classes  # it has the parts of Terms that conditions use: types, static
        self._singles: dict[int, tuple[str, int, MatchAll]] = {}
        self._joins: dict[int, tuple[Join, list[tuple[str, MatchAll]]]] = {}
        for number, rule in enumerate(rules):
            matchers = [ematcher(rule, index)(view) for index in range(len(rule.sources))]
            operators = [source.operator for source in rule.sources]
            if len(matchers) == 1:
                self._singles[number] = (operators[0], depth(rule.sources[0]), matchers[0])
            else:
                self._joins[number] = (Join(rule, view), list(zip(operators, matchers)))
        self._deepest = max((deep for _, deep, _ in self._singles.values()), default=1)
        self._behind = set(self._singles)  # rules that must look everywhere

    def found(self, rules: Sequence[int]) -> dict[int, list[Place]]:
        classes = self.classes
        index = classes.index()
        roots = {name: [n for members in of.values() for n in members if self.static or not classes.static[n]]
                 for name, of in index.items()}  # fmt: skip
        near = self._near_changes()
        self._behind |= self._singles.keys() - set(rules)
        result: dict[int, list[Place]] = {}
        for number in rules:
            if number in self._joins:
                result[number] = self._joined(number, roots, index)
                continue
            operator, deep, match = self._singles[number]
            at = roots.get(operator, [])
            if number not in self._behind:
                at = [n for n in at if n in near[deep - 1]]
            found: Found = []
            match(at, index, classes.children, found)
            result[number] = [((root,), values) for root, values in found]
        self._behind -= set(rules)
        return result

    def forget(self, rule: int) -> None:
        self._behind.add(rule)

    def _joined(self, number: int, roots: Mapping[str, Sequence[int]], index: Index) -> list[Place]:
        join, matchers = self._joins[number]
        founds: list[Found] = [[] for _ in matchers]
        for (operator, match), found in zip(matchers, founds):
            match(roots.get(operator, []), index, self.classes.children, found)
        return places(join, founds, self.classes)

    def _near_changes(self) -> list[set[int]]:
        """[d] nodes with a changed class at most d below their own members."""
        classes = self.classes
        at = {classes.find(c) for c in classes.changed}
        reached = set(at)
        near = []
        for _ in range(self._deepest):
            near.append({n for c in reached for n in classes.members[c]})
            at = {classes.find(user) for c in at for user in classes.users[c] if user in classes.children} - reached
            reached = reached | at
        return near


def places(join: Join, founds: Sequence[Found], classes: TermClasses) -> list[Place]:
    """Nodes of different classes that a rule of several outputs matches together.

    Both orders of a symmetric rule are there: they concatenate in different orders, and one alone may match a later
    concatenation.
    """
    find = classes.find
    made = join.places(founds, lambda roots, root: find(root) not in map(find, roots))
    return [place for place in made if join.holds(*place[1])]
