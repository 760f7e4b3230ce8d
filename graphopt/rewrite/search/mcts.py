"""`mcts`: which rule to apply next to an e-graph, by Monte Carlo tree search (Hartmann, He, Yoneki: Optimizing Tensor
Computation Graphs with Equality Saturation and Monte Carlo Tree Search, PACT 2024; RMCTS, its code).

Equality saturation applies all rules in every round, and a limit of nodes ends it wherever that was spent. Here a state
is an e-graph, an action one rule, applied once wherever it matches. A *simulation* goes down the tree by upper
confidence bounds, adds a node, goes on by `rollout` rules drawn at random, and extracts a program. The saving, as a
share of the original's price, is credited to every action on the way. After `simulations` of them the action of the
best mean is taken, its subtree is kept, and so on until the e-graph is full or saturated.

As in the code: rules that match nothing are no actions (pruning); rollouts draw rules by their credit so far with a
chance of up to 3/4 (`heavy`); a full e-graph ends a simulation. Ours: programs are extracted at the end of a simulation
rather than after each rule, since costs do not rise on the way, so that rewards are not discounted either; by
`greedy_dag`, which pays shared terms once, and exactly where that comes within `refine` of the best. One evaluation per
extraction. A root's first simulation applies all rules in turn, as equality saturation would; and where simulations
have found a cheaper program, the next ones begin with an e-graph of that program alone (`restart`), so that merges
build on merges.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from graphopt.core.utils.marks import Count, NotNegative, Positive, Whole
from graphopt.rewrite.egraphs.eclasses import State, TermClasses
from graphopt.rewrite.egraphs.saturation import Explorer
from graphopt.rewrite.ir.terms import Outputs
from graphopt.rewrite.rewrite_problem import RewriteProblem, Rewriter
from graphopt.rewrite.rules.steps import Price
from graphopt.rewrite.search.tensat import Choosing, additive_price

FULL = ("nodes", "seconds")
MOST_HEAVY = 0.75  # share of the rules of a rollout that are drawn by their credit


@dataclass(eq=False, slots=True)
class Branch:
    """A node of the tree: an e-graph. open: rules that were not tried. done: nothing new is below it."""

    state: State | None  # None: full
    open: list[int]
    visits: int = 0
    earned: float = 0.0
    children: dict[int, "Branch"] = field(default_factory=dict)
    done: bool = False


class Mcts(Rewriter):
    """yaml: conf/algo/mcts.yaml. Needs a cost model that sums over ops."""

    needs_cost = frozenset({"prices of single ops"})

    def __init__(self, *, name: str, nodes: Count, simulations: Count, rollout: Whole, exploration: NotNegative,
                 refine: Positive, rule_seconds: Positive, restart: bool) -> None:  # fmt: skip
        self.name, self.nodes, self.simulations, self.rollout = name, nodes, simulations, rollout
        self.exploration, self.refine, self.rule_seconds, self.restart = exploration, refine, rule_seconds, restart

    def solve(self, problem: RewriteProblem) -> None:
        search = _Search(self, problem, additive_price(problem, self.name))
        here = search.root()
        while problem.open and not here.done:
            before = problem.best_cost
            for _ in range(self.simulations):
                if not here.done:
                    search.simulate(here)
            if self.restart and problem.best_cost < before:
                here = search.root()
            elif further := [child for child in here.children.values() if not child.done]:
                here = max(further, key=lambda child: child.earned / max(1, child.visits))


class _Search:
    """One problem: the e-graph that simulations change, and the credit of rules."""

    def __init__(self, how: Mcts, problem: RewriteProblem, price: Price) -> None:
        self.how, self.problem, self.price = how, problem, price
        self.rules = problem.task.rules
        self.classes = TermClasses(problem.terms)
        self.nothing = self.classes.state()
        self.explorer = Explorer(self.rules, self.classes)
        self.earned, self.tried = np.zeros(len(self.rules)), np.zeros(len(self.rules))
        self.quick, self.exact = Choosing("greedy_dag", 0.0), Choosing("ilp", 5.0)

    def root(self) -> Branch:
        """An e-graph of the best program."""
        self.classes.restore(self.nothing)
        self.classes.rule = ""
        self.start, self.made_by = self.problem.best, self.problem.best_rules
        self.classes.add_program(self.start)
        return Branch(self.classes.state(), self._matching())

    def simulate(self, root: Branch) -> None:
        """Selection, expansion, rollout, and its reward."""
        path, applied = [root], list[int]()
        while not path[-1].open and not all(child.done for child in path[-1].children.values()):
            rule = self._best(path[-1])
            applied.append(rule)
            path.append(path[-1].children[rule])
        leaf = path[-1]
        if leaf.state is None:
            gain = leaf.earned / max(1, leaf.visits)
        else:
            self.classes.restore(leaf.state)
            if not root.visits:
                any(self._apply(rule) in FULL for rule in leaf.open)  # all in turn, until the e-graph is full
            else:
                grown = self._expand(leaf)
                if grown is not None:
                    applied.append(grown)
                    path.append(leaf.children[grown])
                self._roll_out(path[-1], applied)
            gain = self._gain()
        self.earned[applied] += gain
        self.tried[applied] += 1
        for branch in reversed(path):
            branch.visits += 1
            branch.earned += gain
            branch.done = not branch.open and all(child.done for child in branch.children.values())

    def _apply(self, rule: int) -> str:
        return self.explorer.apply_rule(rule, self.how.nodes, self.how.rule_seconds).why

    def _best(self, branch: Branch) -> int:
        """By upper confidence bounds."""

        def score(rule: int) -> float:
            child = branch.children[rule]
            spread = math.sqrt(2 * math.log(max(2, branch.visits)) / max(1, child.visits))
            return child.earned / max(1, child.visits) + self.how.exploration * spread

        return max((rule for rule, child in branch.children.items() if not child.done), key=score)

    def _expand(self, leaf: Branch) -> int | None:
        """The rule of a new child; None where no rule makes anything new."""
        while leaf.open:
            rule = leaf.open.pop(int(self.problem.rng.integers(len(leaf.open))))
            why = self._apply(rule)
            if why != "saturated":
                full = why in FULL
                leaf.children[rule] = Branch(None if full else self.classes.state(), [] if full else self._matching())
                return rule
        return None

    def _roll_out(self, branch: Branch, applied: list[int]) -> None:
        """Further rules, until the e-graph is full."""
        if branch.state is None:
            return
        actions = np.array(branch.open, np.int64)
        for _ in range(self.how.rollout if len(actions) else 0):
            rule = self._drawn(actions)
            applied.append(rule)
            if self._apply(rule) in FULL:
                return

    def _drawn(self, actions: np.ndarray) -> int:  # type: ignore[type-arg]
        rng, tried = self.problem.rng, self.tried[actions] > 0
        means = np.where(tried, self.earned[actions] / np.maximum(1, self.tried[actions]), 0.0)
        if means.sum() > 0 and rng.random() < min(MOST_HEAVY, tried.mean()):
            return int(rng.choice(actions, p=means / means.sum()))
        return int(rng.choice(actions))

    def _matching(self) -> list[int]:
        """Rules that match anywhere; those of several outputs are found out by trying, which costs less."""
        single = [number for number, rule in enumerate(self.rules) if len(rule.sources) == 1]
        for number in single:
            self.explorer.finder.forget(number)
        found = self.explorer.finder.found(single)
        return [number for number in range(len(self.rules)) if number not in found or found[number]]

    def _gain(self) -> float:
        """The share of the original's price that the best program of the e-graph saves; it is billed."""
        problem = self.problem
        outputs, rules = self._extracted(self.quick)
        cost = problem.cost(outputs, rules)
        if cost <= problem.best_cost * self.how.refine:
            cost = min(cost, problem.cost(*self._extracted(self.exact)))
        return max(0.0, 1 - cost / problem.initial_cost)

    def _extracted(self, choosing: Choosing) -> tuple[Outputs, tuple[str, ...]]:
        left = self.problem.seconds_cap - self.problem.seconds
        outputs, made_by = choosing.extracted(self.classes, self.start, self.price, left)
        return outputs, (*self.made_by, *made_by)
