"""Which ops of two programs are the same. Rewriting changes the terms of all that lies below a change, not these ops.

Ops are alike where operation, types and weights are equal. Those that read the same weights, which no other op of
either program reads, are the same. So are alike ops whose results the same op reads, or that read results of the same
op; in the end, of alike ops that are left, as many as both have, in order.
"""

from collections import defaultdict
from collections.abc import Sequence

from graphopt.rewrite.ir.terms import Program, maker_of

Look = tuple[object, ...]  # equal for ops that are alike


def differing_terms(program: Program, other: Program) -> tuple[list[int], list[int]]:
    """Terms of either program that run and are no op of the other one, ascending. The programs share their terms."""
    found = _Alignment(program, other)
    return found.left(0), found.left(1)


class _Alignment:
    def __init__(self, program: Program, other: Program) -> None:
        self._terms = program.terms
        self._live = program.live(), other.live()
        self._users = [self._users_of(live) for live in self._live]
        self._pair: tuple[dict[int, int], dict[int, int]] = {}, {}  # term -> the same op's, of either program
        self._waiting = list[tuple[int, int]]()
        for term in {*self._live[0]} & {*self._live[1]}:
            self._match(term, term)
        for one, two in zip(program.outputs, other.outputs):
            self._match_alike([maker_of(self._terms, one)], [maker_of(self._terms, two)])
        ours, theirs = (self._by_look(side, self._live[side]) for side in (0, 1))
        for look, ops in ours.items():
            reads_weights = any(self._terms.static[i] for i in self._terms.inputs[ops[0]])
            if reads_weights and len(ops) == len(theirs.get(look, ())) == 1:
                self._match(ops[0], theirs[look][0])
        while self._waiting:
            self._spread(*self._waiting.pop())
        self._match_alike(*self._live)

    def left(self, side: int) -> list[int]:
        """Ops of one program that have no match."""
        return [term for term in self._live[side] if self._terms.runs[term] and term not in self._pair[side]]

    def _by_look(self, side: int, ops: Sequence[int]) -> dict[Look, list[int]]:
        """Those that have no match, by their operation, types and weights."""
        terms, found = self._terms, defaultdict[Look, list[int]](list)
        for term in ops:
            if terms.runs[term] and term not in self._pair[side]:
                weights = tuple(i if terms.static[i] else None for i in terms.inputs[term])
                found[terms.kind[term], terms.types[term], weights].append(term)
        return found

    def _match(self, one: int, two: int) -> None:
        self._pair[0][one], self._pair[1][two] = two, one
        self._waiting.append((one, two))

    def _match_alike(self, ones: Sequence[int], twos: Sequence[int]) -> None:
        """Of alike ops, as many as there are of both, in order."""
        others = self._by_look(1, twos)
        for look, ops in self._by_look(0, ones).items():
            for one, two in zip(ops, others.get(look, ())):
                self._match(one, two)

    def _spread(self, one: int, two: int) -> None:
        """From a pair to its operands, and to its readers."""
        terms = self._terms
        if terms.kind[one] == terms.kind[two]:
            for a, b in zip(terms.inputs[one], terms.inputs[two]):
                self._match_alike([maker_of(terms, a)], [maker_of(terms, b)])
        self._match_alike(self._users[0].get(one, ()), self._users[1].get(two, ()))

    def _users_of(self, live: Sequence[int]) -> dict[int, list[int]]:
        """Ops that read a term's results, ascending; each once."""
        users = defaultdict[int, list[int]](list)
        for term in live:
            if self._terms.runs[term]:
                for maker in dict.fromkeys(maker_of(self._terms, i) for i in self._terms.inputs[term]):
                    users[maker].append(term)
        return users
