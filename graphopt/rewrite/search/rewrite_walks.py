"""Searches over whole programs by rewrites: `rewrite_greedy`, `rewrite_sweeps`, `rewrite_random`, `taso`, `pet`."""

import heapq
from collections.abc import Sequence

from graphopt.core.utils.marks import AtLeastOne, Count, Whole
from graphopt.rewrite.generation.partial import mutants
from graphopt.rewrite.ir.terms import reachable
from graphopt.rewrite.rewrite_problem import Point, RewriteProblem, Rewriter
from graphopt.rewrite.rules.matching import Match
from graphopt.rewrite.rules.steps import RewriteStep

MARK = "pet_"  # before the name of a mutation among the rules of a program


class RewriteGreedy(Rewriter):
    """Steepest descent: the best rewrite of all, again and again, until none makes it cheaper; of equals the first."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: RewriteProblem) -> None:
        point = problem.start()
        while problem.open:
            steps = [step for step in problem.expand(point) if step.ops < problem.most_ops]
            best = min(steps, key=lambda step: step.cost, default=None)
            if best is None or best.cost >= point.cost:
                return
            point = problem.take(point, best)


class RewriteSweeps(Rewriter):
    """Steepest descent over sweeps: each rule at all its places, the cheapest program, and again from there until none
    is cheaper. It shows the value of measuring sweeps without learning, and without an additive model.

    waves: a rule is applied everywhere up to so many times over. A program is priced once.
    """

    def __init__(self, *, name: str, waves: Count) -> None:
        self.name, self.waves = name, waves

    def solve(self, problem: RewriteProblem) -> None:
        point = problem.start()
        seen = {problem.digest(point)}
        while problem.open:
            new = {problem.digest(one): one for one in problem.sweeps(point, self.waves)}
            points = [one for digest, one in new.items() if digest not in seen][: problem.remaining]
            seen.update(new)
            costs = problem.costs([(one.outputs, one.rules) for one in points])
            priced = [one._replace(cost=cost) for one, cost in zip(points, costs)]
            best = min(priced, key=lambda one: one.cost, default=None)
            if best is None or best.cost >= point.cost:
                return
            point = best


class RewriteRandom(Rewriter):
    """Random walks from the original program, each step one of all rewrites, equally likely; every program on the way
    is priced. steps: length of a walk; then the next one starts. walks: how many, if the budget lasts."""

    def __init__(self, *, name: str, steps: Count, walks: Count) -> None:
        self.name, self.length, self.walks = name, steps, walks

    def solve(self, problem: RewriteProblem) -> None:
        for _ in range(self.walks):
            point = problem.start()
            for _ in range(self.length):
                steps = [step for step in problem.steps(point) if step.ops < problem.most_ops] if problem.open else []
                if not steps:
                    break
                taken = problem.take(point, steps[int(problem.rng.integers(len(steps)))])
                point = taken._replace(cost=problem.cost(taken.outputs, taken.rules))


class Taso(Rewriter):
    """TASO's cost-based backtracking search (Jia et al., SOSP 2019; `ops.cc` of its code).

    A queue of programs by cost. The cheapest is taken out and all its rewrites are found: every rule at every place.
    One is queued if it costs less than alpha times the best, has fewer than twice (the task's `growth`) the original's
    ops, and was never queued before. As in TASO's code, the best is that of the programs taken out of the queue, so
    that the threshold does not move while a program is expanded. Programs are made when they are taken out.

    alpha: 1 takes strict improvements alone (the default of TASO's code), 1.05 is the paper's. pops: programs that are
    expanded at most (TASO's `budget`).
    """

    def __init__(self, *, name: str, alpha: AtLeastOne, pops: Count) -> None:
        self.name, self.alpha, self.pops = name, alpha, pops

    def solve(self, problem: RewriteProblem) -> None:
        start = problem.start()
        queue: list[tuple[float, int, Point, RewriteStep | None]] = [(start.cost, 0, start, None)]
        seen, queued, best = {problem.digest(start)}, 1, start.cost
        for _ in range(self.pops):
            if not queue or not problem.open:
                return
            cost, _, parent, taken = heapq.heappop(queue)
            point = parent if taken is None else problem.take(parent, taken)
            best = min(best, cost)
            for step in problem.expand(point, self.others(problem, point)):
                if step.cost < self.alpha * best and step.ops < problem.most_ops and step.digest not in seen:
                    seen.add(step.digest)
                    heapq.heappush(queue, (step.cost, queued, point, step))
                    queued += 1

    def others(self, problem: RewriteProblem, point: Point) -> Sequence[Match]:
        """Rewrites of a program beside those of the rules."""
        return ()


class Pet(Taso):
    """Rewriting with partially equivalent transformations (Wang et al., PET, OSDI 2021).

    As `taso` over whole programs, where beside the rules every convolution and matrix product may be mutated. Up to
    `depth` of them are, on the way to a program (PET's MUTATION_DEPTH is 5; graphopt/rewrite/generation/partial.py).
    Transposes, reshapes, splits and concatenations that a mutant puts around an operation are left for rules to remove.

    PET mutates small subgraphs and combines them; here mutants are of one operation at a time, and combinations come
    from the search. PET's corrections are fused kernels; here they are strips of the original convolution,
    concatenated.
    """

    def __init__(self, *, name: str, alpha: AtLeastOne, pops: Count, depth: Whole) -> None:
        super().__init__(name=name, alpha=alpha, pops=pops)
        self.depth = depth
        self._mutants: dict[int, list[Match]] = {}  # of the problem that is being solved, by term

    def solve(self, problem: RewriteProblem) -> None:
        self._mutants = {}
        super().solve(problem)

    def others(self, problem: RewriteProblem, point: Point) -> Sequence[Match]:
        """Every operation of the program mutated alone."""
        if sum(rule.startswith(MARK) for rule in point.rules) >= self.depth:
            return ()
        terms = reachable(problem.terms, point.outputs)
        for term in terms:
            if term not in self._mutants:
                found = mutants(problem.terms, term)
                self._mutants[term] = [problem.neighbours.found(MARK + one.name, (term,), (one.term,)) for one in found]
        return [match for term in terms for match in self._mutants[term]]
