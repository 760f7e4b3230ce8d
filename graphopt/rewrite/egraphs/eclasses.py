"""`TermClasses`: classes of equal terms over a store of terms, the e-graph of proofs and searches.

A node is a term; its children are classes. A class is named by one of its terms, which stands for it. Types, whether it
is static, and the cost of a node come from the store, where they are known already. Rules see the classes as they see a
store (`add`, `types`, `static`), so that compiled conditions and builders serve both.

Union-find with congruence restored after each round (Willsey et al., egg, POPL 2021). Cycles are kept out as Tensat's
efficient filter does (section 5.2): `Descendants` before a rule is applied, `forbid_cycles` after a round.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from graphopt.rewrite.ir.terms import Terms, reachable
from graphopt.rewrite.ir.vocabulary import Operation

Key = tuple[int, ...]  # kind of operation, classes of inputs
STATE = ("members", "users", "children", "maker", "born", "_above", "_known")  # of `TermClasses`
State = list[dict[Any, Any]]  # its values


class TermClasses:
    """Classes of terms.

    children: classes that each node needs; the keys are the nodes. members, users:
    per class, its nodes and those that need it. maker: which rule made a node; empty for nodes of the given program.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.operation, self.inputs, self.types, self.static = terms.operation, terms.inputs, terms.types, terms.static
        self.children: dict[int, tuple[int, ...]] = {}
        self.members: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        self.maker: dict[int, str] = {}
        self.born: dict[int, int] = {}  # nodes, in the order in which they came
        self.changed: set[int] = set()  # classes with new members, since this was last emptied
        self.rule = ""  # the rule that makes new nodes now
        self._above: dict[int, int] = {}
        self._known: dict[Key, int] = {}
        self._merged: list[int] = []

    def __len__(self) -> int:
        return len(self.children)

    def find(self, term: int) -> int:
        """The present class of a node or of a class."""
        above = self._above
        while (up := above[term]) != term:
            above[term] = term = above[up]
        return term

    def add_program(self, outputs: Iterable[int]) -> None:
        """Adds all that the outputs need."""
        for term in reachable(self.terms, outputs):
            self._add((self.terms.kind[term], *map(self.find, self.inputs[term])), term)

    def add(self, operation: Operation, inputs: Sequence[int] = ()) -> int:
        """The class of an operation on classes, a new one if there is none. Raises ShapeError."""
        classes = tuple([self.find(i) for i in inputs])
        kind = self.terms.kind_of(operation)
        known = self._known.get((kind, *classes))
        if known is not None:
            return self.find(known)
        return self._add((kind, *classes), self.terms.add(operation, classes))

    def _add(self, key: Key, term: int) -> int:
        if key in self._known:
            return self.find(self._known[key])
        self._known[key] = self._above[term] = term
        self.children[term], self.maker[term] = key[1:], self.rule
        self.born[term] = len(self.born)
        self.members[term], self.users[term] = [term], []
        for child in set(key[1:]):
            self.users[child].append(term)
        self.changed.add(term)
        return term

    def merge(self, a: int, b: int) -> bool:
        """Makes two classes one; whether they were two. `rebuild` must follow before classes are read."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        if len(self.members[a]) + len(self.users[a]) < len(self.members[b]) + len(self.users[b]):
            a, b = b, a
        self._above[b] = a
        self.members[a] += self.members.pop(b)
        self.users[a] += self.users.pop(b)
        self.changed.discard(b)
        self.changed.add(a)
        self._merged.append(a)
        return True

    def rebuild(self) -> None:
        """Restores congruence: equal operations on equal classes are equal. Of equal nodes the oldest stays."""
        while self._merged:
            merged, self._merged = self._merged, []
            for at in {self.find(a) for a in merged}:
                self._rebuild_users(self.find(at))

    def _rebuild_users(self, at: int) -> None:
        kind, before = self.terms.kind, len(self.users[at])
        users, kept = dict.fromkeys(self.users[at]), []
        for user in users:
            if user not in self.children:
                continue
            old = (kind[user], *self.children[user])
            new = (kind[user], *[self.find(c) for c in old[1:]])
            if new != old and self._known.get(old) == user:
                del self._known[old]
            known = self._known.setdefault(new, user)
            self.children[user] = new[1:]
            if known not in self.children:  # forbidden: this node may be the only one left of its class
                self._known[new] = user
                self.merge(user, known)
            if self._known[new] == user:
                kept.append(user)
            else:
                self._drop(user, known)
        if (now := self.find(at)) == at:
            kept += self.users[at][before:]  # of classes that were merged into this one meanwhile
        self.users[now] = kept if now == at else [*self.users[now], *kept]

    def _drop(self, node: int, twin: int) -> None:
        """Forgets a node that became equal to another one, and merges their classes."""
        here = self.find(node)
        self.members[here].remove(node)
        del self.children[node]
        if here != self.find(twin):
            self.merge(here, twin)

    def forbid(self, node: int) -> None:
        """Takes a node out of its class; it does not come back while the classes that it needs stay apart."""
        self.members[self.find(node)].remove(node)
        del self.children[node]

    def state(self) -> State:
        """A copy of the state; the classes go on changing, the copy does not."""
        return [_copied(getattr(self, name)) for name in STATE]

    def restore(self, state: State) -> None:
        """Back to a state; no class counts as changed."""
        for name, value in zip(STATE, state, strict=True):
            setattr(self, name, _copied(value))
        self._merged = []
        self.changed.clear()

    def index(self) -> dict[str, dict[int, list[int]]]:
        """Members by operator and class."""
        result: dict[str, dict[int, list[int]]] = defaultdict(dict)
        for at, members in self.members.items():
            for node in members:
                result[self.operation[node].name].setdefault(at, []).append(node)
        return result


def _copied(values: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of its own, with lists of its own."""
    nested = any(isinstance(value, list) for value in values.values())
    return {at: list(of) for at, of in values.items()} if nested else dict(values)


class Descendants:
    """The descendants of every class when this was made: sets of classes as bits of long integers."""

    def __init__(self, classes: TermClasses) -> None:
        order = _postorder(classes)
        self.bit = bit = {at: 1 << place for place, at in enumerate(order)}
        self.below = below = dict.fromkeys(order, 0)
        changed = True
        while changed:  # once more than needed without cycles
            changed = False
            for at in order:
                bits = below[at]
                for node in classes.members[at]:
                    for child in classes.children[node]:
                        bits |= below[child] | bit[child]
                if bits != below[at]:
                    below[at], changed = bits, True

    def reach(self, starts: Sequence[int], goals: Sequence[int]) -> bool:
        """Whether one of the starts is one of the goals, or needs one."""
        wanted = 0
        for goal in goals:
            wanted |= self.bit.get(goal, 0)
        return any((self.below.get(start, 0) | self.bit.get(start, 0)) & wanted for start in starts)


def _postorder(classes: TermClasses) -> list[int]:
    """Classes after those they need, cycles aside."""
    order: dict[int, None] = {}
    for start in classes.members:
        stack, entered = [(start, False)], set[int]()
        while stack:
            at, done = stack.pop()
            if at in order or (at in entered and not done):
                continue
            if done:
                order[at] = None
                continue
            entered.add(at)
            stack.append((at, True))
            stack += [(child, False) for node in classes.members[at] for child in classes.children[node]]
    return list(order)


def forbid_cycles(classes: TermClasses) -> None:
    """Takes the newest node out of every cycle, until there is none. Every class keeps a node: `_first_nodes` stay."""
    if not (cycles := _cycles(classes)):
        return
    kept = _first_nodes(classes)
    while cycles:
        for cycle in cycles:
            if all(node in classes.children for node in cycle):
                classes.forbid(max((node for node in cycle if node not in kept), key=classes.born.__getitem__))
        cycles = _cycles(classes)


def _first_nodes(classes: TermClasses) -> set[int]:
    """A node of each class, old ones first, that needs only classes which have theirs already. So these nodes make no
    cycle."""
    first, waiting = dict[int, int](), sorted(classes.children, key=classes.born.__getitem__)  # first: node of a class
    while waiting:
        before = len(first)
        for node in waiting:
            if all(child in first for child in classes.children[node]):
                first.setdefault(classes.find(node), node)
        assert len(first) > before  # merging classes that have such a node leaves one that has
        waiting = [node for node in waiting if classes.find(node) not in first]
    return set(first.values())


def _cycles(classes: TermClasses) -> list[list[int]]:
    """Nodes of some cycles, at least one if there are any: those that one depth-first search closes."""
    cycles, finished = list[list[int]](), set[int]()
    for start in classes.members:
        if start in finished:
            continue
        way: list[int] = []  # nodes from the start to here
        place = {start: 0}  # of classes on the way
        stack = [iter(_edges(classes, start))]
        at = [start]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                done = at.pop()
                finished.add(done)
                del place[done]
                if way:
                    way.pop()
                continue
            node, child = step
            if child in place:
                cycles.append([*way[place[child] :], node])
            elif child not in finished:
                way.append(node)
                place[child] = len(at)
                at.append(child)
                stack.append(iter(_edges(classes, child)))
    return cycles


def _edges(classes: TermClasses, at: int) -> list[tuple[int, int]]:
    """(node, class that it needs) of a class."""
    return [(node, child) for node in classes.members[at] for child in dict.fromkeys(classes.children[node])]
