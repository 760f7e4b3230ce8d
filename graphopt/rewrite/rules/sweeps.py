"""Sweeps: a rule applied at all its places at once.

One rewrite of many changes a program's run time by less than a timing's noise. The same rewrite everywhere does not,
and what an additive model says of it may be wrong everywhere alike: of all convolutions whose groups are merged, say.

A wave takes the places of a rule in the program as it is, the last ones first, so that earlier places stay what they
are; what would no longer be there when its turn comes is left out. The program is made once, when all are chosen. A
sweep is one wave or several.
"""

from collections.abc import Iterator, Mapping, Sequence

from graphopt.rewrite.ir.terms import Outputs, Terms, reachable, reaches, runs
from graphopt.rewrite.rules.matching import Match, Matcher
from graphopt.rewrite.rules.rule import Rule
from graphopt.rewrite.rules.steps import Neighbours


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
        return sum(runs(self.terms, term) for term in self.live)


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
        """Other uses of a term; what begins to need its inputs, or stops to, changes theirs."""
        changes = [(term, uses)]
        for one, by in changes:  # grows meanwhile
            before = self._of(one)
            self._left[one] = before + by
            if not before or not before + by:
                changes += [(i, 1 if by > 0 else -1) for i in set(self.terms.inputs[one])]


def replaced(program: Survey, chosen: Mapping[int, int]) -> Outputs:
    """The outputs when roots are replaced by other terms, all at once: also in what replaces others."""
    image, terms, first = dict[int, int](), program.terms, min(chosen)
    inputs = terms.inputs
    for term in program.live:
        if term in chosen:
            _resolve(program, term, chosen, image)
        elif term > first and term not in image and not image.keys().isdisjoint(inputs[term]):
            image[term] = terms.like(term, tuple([image.get(i, i) for i in inputs[term]]))
    return tuple([image.get(o, o) for o in program.outputs])


def _resolve(program: Survey, root: int, chosen: Mapping[int, int], image: dict[int, int]) -> None:
    """The images of a root and of what replaces it; earlier live terms have theirs. A root that is needed by what
    replaces it stays there."""
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
