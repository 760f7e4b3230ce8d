"""All programs one rewrite away, priced and told apart without being made.

A rewrite replaces roots by other terms of the same types. Users of a root, direct or not, only change their operands:
their prices stay. So the price of a new program is that of the old one, plus new terms of the replacement, minus terms
that nothing needs any more; and its digest follows from the digests of the replaced terms (digests.py). That costs the
same wherever in a program the rewrite is, and only programs that a search goes on with are made, since `Terms` never
forgets.

Some rewrites are not that simple: the replacement contains a root, a root contains a root, or users of a root coincide
with other terms. Then the program is made and summed up.

Sweeps: a rule applied at all its places at once. One rewrite of many changes a program's run time by less than a
timing's noise. The same rewrite everywhere does not, and an additive price of it may be wrong everywhere alike: of all
convolutions whose groups are merged, say.

A wave takes the places of a rule in the program as it is, the last ones first, so that earlier places stay as they are;
places that are gone when their turn comes are left out. The program is made once, when all are chosen. A sweep is one
wave or several.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from graphopt.rewrite.ir.digests import PRIME, Digests
from graphopt.rewrite.ir.terms import Outputs, Program, Terms, reachable, reaches, substitute
from graphopt.rewrite.rules.matching import Match, Matcher
from graphopt.rewrite.rules.rule import Rule, RuleSet

Price = Callable[[int], float]


class RewriteStep(NamedTuple):
    """A rewrite of a program, and facts about the program that it leads to.

    cost: the sum over its terms. ops: number of its terms that run. digest: equal for equal programs.
    """

    match: Match
    cost: float
    ops: int
    digest: int


class ProgramChange(NamedTuple):
    """The changes of a rewrite to a program: live terms that go, terms that come, and the replacement of each root."""

    gone: list[int]
    added: list[int]
    image: dict[int, int]


def free(term: int) -> float:
    """The price of a term where none is known."""
    return 0.0


class Neighbourhood:
    """The programs one rewrite away from a program."""

    def __init__(self, matcher: Matcher, digests: Digests, price: Price, outputs: Outputs) -> None:
        self.terms, self.matcher, self.price, self.outputs = matcher.terms, matcher, price, outputs
        self.live = reachable(self.terms, outputs)
        self.cost = float(sum(map(price, self.live)))
        self.ops = sum(self.terms.runs[t] for t in self.live)
        self._digests, self.digest = digests, digests.program(outputs)
        self._weights = digests.weights(outputs, self.live)
        self._users: dict[int, list[int]] = {term: [] for term in self.live}
        inputs = self.terms.inputs
        for term in self.live:
            for i in set(inputs[term]):
                self._users[i].append(term)
        self._uses = {term: len(users) for term, users in self._users.items()}
        for o in outputs:
            self._uses[o] += 1

    def steps(self, extra: Sequence[Match] = (), alone: bool = True) -> Iterator[RewriteStep]:
        """Every other program, once; in the order of rules and places. extra: matches that were found elsewhere; alone:
        with those of the rules."""
        seen = {self.digest}
        for match in chain(self.matcher.matches(self.live) if alone else (), extra):
            made = self.matcher.apply(match)
            if made is not None:
                step = self._step(match, made)
                if step.digest not in seen:
                    seen.add(step.digest)
                    yield step

    def apply(self, match: Match) -> Outputs:
        """The outputs of the program that a match leads to."""
        made = self.matcher.apply(match)
        assert made is not None
        return substitute(self.terms, self.outputs, self.live, dict(zip(match.roots, made)))

    def cost_of(self, match: Match) -> float:
        """The price of the program that a match leads to."""
        made = self.matcher.apply(match)
        assert made is not None
        return self._step(match, made).cost

    def change(self, match: Match) -> ProgramChange | None:
        """The change by a match of this program; None where only making the program tells."""
        made = self.matcher.apply(match)
        assert made is not None
        return self._change(match.roots, made)

    def _change(self, roots: tuple[int, ...], made: tuple[int, ...]) -> ProgramChange | None:
        added = self._added(made)
        gone = self._gone(roots, made, added) if self._apart(roots, made, added) else None
        return None if gone is None else ProgramChange(gone, added, dict(zip(roots, made)))

    def _step(self, match: Match, made: tuple[int, ...]) -> RewriteStep:
        roots, terms, price = match.roots, self.terms, self.price
        change = self._change(roots, made)
        if change is None:
            outputs = self.apply(match)  # by making its program
            live = reachable(terms, outputs)
            cost, ops = float(sum(map(price, live))), sum(terms.runs[t] for t in live)
            return RewriteStep(match, cost, ops, self._digests.program(outputs))
        cost, ops, works = self.cost, self.ops, terms.runs
        for term in change.added:
            cost += price(term)
            ops += works[term]
        for term in change.gone:
            cost -= price(term)
            ops -= works[term]
        digest, of = self.digest, self._digests.of
        for root, term in zip(roots, made):
            (a, b), (old_u, old_v), (u, v) = self._weights[root], of(root), of(term)
            digest += a * (u - old_u) + b * (v - old_v)
        return RewriteStep(match, cost, ops, digest % PRIME)

    def _added(self, made: tuple[int, ...]) -> list[int]:
        """Terms of the replacement that are not live."""
        live, inputs = self._users, self.terms.inputs
        added = list(dict.fromkeys(term for term in made if term not in live))
        known = set(added)
        for term in added:  # grows meanwhile
            for i in inputs[term]:
                if i not in live and i not in known:
                    known.add(i)
                    added.append(i)
        return added

    def _apart(self, roots: tuple[int, ...], made: tuple[int, ...], added: list[int]) -> bool:
        """Whether users of the roots, changed, are none of the terms that were or are added, nor each other.

        If that holds for the direct users it holds for their users, since then different terms change differently.
        """
        static, inputs, live = self.terms.static, self.terms.inputs, self._users
        if len(made) == 1 and made[0] not in live:
            return not static[made[0]]
        if any(static[term] for term in made):
            return False
        old = [term for term in made if term in live]
        if not old and len(set(made)) == len(made):
            return all(set(inputs[term]).isdisjoint(made) for term in added)
        image, kind = dict(zip(roots, made)), self.terms.kind
        users = {user for root in roots for user in live[root]}
        changed = {(kind[user], *[image.get(i, i) for i in inputs[user]]) for user in users}
        others = [user for term in old for user in live[term] if user not in users]
        others += [term for term in added if not set(inputs[term]).isdisjoint(made)]
        return len(changed) == len(users) and not any((kind[o], *inputs[o]) in changed for o in others)

    def _gone(self, roots: tuple[int, ...], made: tuple[int, ...], added: list[int]) -> list[int] | None:
        """Live terms that nothing needs any more, the roots first; None where roots are in the replacement or gone."""
        inputs, uses, live, first = self.terms.inputs, self._uses, self._users, min(roots)
        left: dict[int, int] = {}
        for needed in (made, *[set(inputs[term]) for term in added]):
            for i in needed:
                if i in live:
                    if i >= first and reaches(self.terms, i, set(roots)):
                        return None
                    left[i] = left.get(i, uses[i]) + 1
        gone = list(roots)
        for term in gone:  # grows meanwhile
            for i in set(inputs[term]):
                if i in roots:
                    return None
                uses_left = left[i] = left.get(i, uses[i]) - 1
                if not uses_left:
                    gone.append(i)
        return gone


class Neighbours:
    """The programs around those of one store of terms. Remembers where rules match."""

    def __init__(self, rules: RuleSet, terms: Terms) -> None:
        self.terms, self._matcher, self._digests = terms, Matcher(rules, terms), Digests(terms)

    def around(self, outputs: Outputs, price: Price) -> Neighbourhood:
        """The programs one rewrite away, priced term by term, and not made."""
        return Neighbourhood(self._matcher, self._digests, price, outputs)

    def found(self, name: str, roots: tuple[int, ...], made: tuple[int, ...]) -> Match:
        """A rewrite that no rule describes: `made`, of the same types, for `roots`."""
        match = Match(Rule(name, (), ()), roots, ())
        self._matcher.note(match, made)
        return match

    def matches(self, live: Sequence[int]) -> list[Match]:
        """Where rules match in a program of these live terms, those that make nothing new among them."""
        return self._matcher.matches(live)

    def alone(self, rule: Rule) -> Matcher:
        """Where one rule matches, and the terms that it makes."""
        return self._matcher.alone(rule)

    def digest(self, outputs: Outputs) -> int:
        """Equal for equal programs."""
        return self._digests.program(outputs)

    def apply(self, outputs: Outputs, match: Match) -> Outputs:
        """The outputs of the program that a match in the program leads to."""
        made = self._matcher.apply(match)
        if made is None:
            raise ValueError(f"rule {match.rule.name} makes nothing of {match.binding}")
        return substitute(self.terms, outputs, reachable(self.terms, outputs), dict(zip(match.roots, made)))


def replayed(program: Program, outputs: Outputs) -> Program:
    """The program with other outputs; refuses those of another type."""
    before, after = ([program.terms.types[o] for o in side] for side in (program.outputs, outputs))
    if before != after:
        raise ValueError(f"rewriting changed the outputs' types from {before} to {after}")
    return program.with_outputs(outputs)


class Survey:
    """A program, its live terms in order, and how many uses each has. No change changes it."""

    def __init__(self, terms: Terms, outputs: Outputs) -> None:
        self.terms, self.outputs, self.live = terms, outputs, reachable(terms, outputs)
        self.uses = uses = dict.fromkeys(self.live, 0)
        inputs = terms.inputs
        for term in self.live:
            for i in set(inputs[term]):
                uses[i] += 1
        for output in outputs:
            uses[output] += 1

    @property
    def ops(self) -> int:
        """Its terms that run."""
        return sum(self.terms.runs[term] for term in self.live)


def sweeps(neighbours: Neighbours, outputs: Outputs, waves: int, most_ops: int) -> list[Match]:
    """The sweeps of every rule, as rewrites of the program's outputs: after one wave, two, ... up to `waves`, while
    that makes new programs of fewer than `most_ops` ops. Sweeps of one place are the rewrite itself, and left out."""
    found = list[Match]()
    if not waves:
        return found
    start = Survey(neighbours.terms, outputs)
    for rule in dict.fromkeys(match.rule for match in neighbours.matches(start.live)):
        found += _of(neighbours, rule, start, waves, most_ops)
    return found


def _of(neighbours: Neighbours, rule: Rule, start: Survey, waves: int, most_ops: int) -> Iterator[Match]:
    seen, now, places = {start.outputs}, start, 0
    for _ in range(waves):
        outputs, changed = wave(neighbours.alone(rule), now)
        places += changed
        if outputs in seen:
            return
        now = Survey(neighbours.terms, outputs)
        if now.ops >= most_ops:
            return
        seen.add(outputs)
        if places > 1:
            pairs = [(old, new) for old, new in dict.fromkeys(zip(start.outputs, outputs)) if old != new]
            yield neighbours.found(rule.name, tuple(old for old, _ in pairs), tuple(new for _, new in pairs))


def wave(matcher: Matcher, program: Survey) -> tuple[Outputs, int]:
    """The program with the matcher's one rule applied at all its places, and at how many."""
    chosen, places, left = dict[int, int](), 0, _Uses(program)
    for match in sorted(matcher.matches(program.live), key=lambda match: match.roots, reverse=True):
        made = matcher.apply(match) if left.there(match.roots, chosen) else None
        if made is not None:
            for root, new in zip(match.roots, made):
                left.replace(root, new)
            chosen.update(zip(match.roots, made))
            places += 1
    return (replaced(program, chosen) if chosen else program.outputs), places


class _Uses:
    """How many uses the terms of a program have left, while roots are replaced."""

    def __init__(self, program: Survey) -> None:
        self.terms, self._uses, self._left = program.terms, program.uses, dict[int, int]()

    def there(self, roots: Sequence[int], chosen: Mapping[int, int]) -> bool:
        """Whether the program still has all the roots as they were."""
        if not all(map(self._of, roots)):
            return False
        return len(roots) == 1 or not chosen or not any(reaches(self.terms, root, set(chosen)) for root in roots)

    def _of(self, term: int) -> int:
        return self._left.get(term, self._uses.get(term, 0))

    def replace(self, root: int, new: int) -> None:
        """All users of the root use another term."""
        uses = self._of(root)
        self._change(new, uses)
        self._change(root, -uses)

    def _change(self, term: int, uses: int) -> None:
        """Changes the uses of a term; where it becomes live or dead, also those of its inputs."""
        changes = [(term, uses)]
        for one, by in changes:  # grows meanwhile
            before = self._of(one)
            self._left[one] = before + by
            if not before or not before + by:
                changes += [(i, 1 if by > 0 else -1) for i in set(self.terms.inputs[one])]


def replaced(program: Survey, chosen: Mapping[int, int]) -> Outputs:
    """The outputs when roots are replaced by other terms, all at once: also within replacements."""
    image, terms, first = dict[int, int](), program.terms, min(chosen)
    inputs = terms.inputs
    for term in program.live:
        if term in chosen:
            _resolve(program, term, chosen, image)
        elif term > first and term not in image and not image.keys().isdisjoint(inputs[term]):
            image[term] = terms.like(term, tuple([image.get(i, i) for i in inputs[term]]))
    return tuple([image.get(o, o) for o in program.outputs])


def _resolve(program: Survey, root: int, chosen: Mapping[int, int], image: dict[int, int]) -> None:
    """The images of a root and of its replacement; earlier ones have theirs. A root in its own replacement stays."""
    terms, here, stack, opened = program.terms, program.uses, [root], set[int]()

    def ready(term: int) -> bool:
        return term in image or (term < root and term in here)

    while stack:
        term = stack[-1]
        goal = chosen.get(term)
        plain = goal is None or (term in opened and not ready(goal))
        needed = terms.inputs[term] if goal is None or plain else (goal,)
        if not plain:
            opened.add(term)
        waiting = [i for i in needed if not ready(i)]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        images = tuple([image.get(i, i) for i in needed])
        image[term] = terms.like(term, images) if plain else images[0]
