"""`TermClasses`: classes of equal terms over a store of terms, the e-graph of proofs and searches.

A node is a term; its children are classes. A class is named by one of its terms, which stands for it: types, whether it
is static, and what a node costs come from the store, where they are known already. Rules see the classes as they see a
store (`add`, `types`, `static`), so that compiled conditions and builders serve both.

Union-find with congruence restored after each round (Willsey et al., egg, POPL 2021).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from graphopt.rewrite.ir.terms import Terms, reachable
from graphopt.rewrite.ir.vocabulary import Operation

Key = tuple[int, ...]  # kind of operation, classes of inputs


class Saved(NamedTuple):
    """A state of `TermClasses`, under the names that it has there."""

    children: dict[int, tuple[int, ...]]
    members: dict[int, list[int]]
    users: dict[int, list[int]]
    maker: dict[int, str]
    born: dict[int, int]
    above: dict[int, int]
    known: dict[Key, int]


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
        self.merges: list[tuple[int, int]] = []  # pairs that were found to be equal
        self.changed: set[int] = set()  # classes with new members, since this was last emptied
        self.rule = ""  # what makes new nodes now
        self._above: dict[int, int] = {}
        self._known: dict[Key, int] = {}
        self._merged: list[int] = []

    def __len__(self) -> int:
        return len(self.children)

    def find(self, term: int) -> int:
        """The class of a node, or what became of a class."""
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
        self.merges.append((a, b))
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
            for at in {self.find(a) for a in self._merged_now()}:
                self._rebuild_users(self.find(at))

    def _merged_now(self) -> list[int]:
        merged, self._merged = self._merged, []
        return merged

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
            if known == user:
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

    def saved(self) -> "Saved":
        """Its state; the classes go on changing, that does not."""
        return Saved(dict(self.children), {at: list(of) for at, of in self.members.items()},
                     {at: list(of) for at, of in self.users.items()}, dict(self.maker), dict(self.born),
                     dict(self._above), dict(self._known))  # fmt: skip

    def restore(self, saved: "Saved") -> None:
        """Back to how it was when that was saved. What it learned since of `merges` is forgotten."""
        self.children, self.maker, self.born = dict(saved.children), dict(saved.maker), dict(saved.born)
        self.members = {at: list(of) for at, of in saved.members.items()}
        self.users = {at: list(of) for at, of in saved.users.items()}
        self._above, self._known = dict(saved.above), dict(saved.known)
        self._merged, self.merges = [], []
        self.changed.clear()

    def index(self) -> dict[str, dict[int, list[int]]]:
        """Members by operator and class."""
        result: dict[str, dict[int, list[int]]] = defaultdict(dict)
        for at, members in self.members.items():
            for node in members:
                result[self.operation[node].name].setdefault(at, []).append(node)
        return result
