"""Where the rules of compilers.txt match, and what they save: `python benchmarks/rule_matches.py [--savings]` prints
JSON lines by family, or by program.

Programs: the models of dataset=rewrite_models at their published sizes, those inside the onnx package, and the layers
of layer_programs.py, which have what these lack. `matches/<family>`: places in all programs as they are, with the
number of programs; `matches_saturated/<family>`: places in e-graphs of at most 4,000 nodes after three rounds of the
handwritten rules and these, which one rule makes for another.

With --savings, `saved/<program>` is what `tensat` saves of the price by the roofline of gpu2, per cent, with these
rules beside the handwritten and the generated ones; `without` is what it saves with those alone, `used` the rules of
compilers.txt that made nodes of the answer. At most 60 CPU seconds each.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import onnx
from layer_programs import LAYERS
from lines import say

from graphopt.core.utils import registry
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.ematching import LoopFinder
from graphopt.rewrite.egraphs.saturation import ExplorationLimits, Explorer
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.models import MODELS, build_model
from graphopt.rewrite.rules.matching import Matcher
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import Rule
from graphopt.run.config.construct import construct

LIMITS = ExplorationLimits(nodes=4000, iterations=3, seconds=30.0, k_multi=1, matches=0.5, rest=2)
BEFORE, ADDED = ("handwritten", "generated"), "compilers"
SECONDS = 60.0  # of a processor, per saturation


def programs() -> Iterator[tuple[str, Program]]:
    for name in MODELS:
        yield name, build_model(name, {})
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for file in sorted(light.glob("*.onnx")):
        yield file.stem, import_onnx(file)
    for name, made in LAYERS.items():
        yield name, made()


def families() -> dict[str, tuple[Rule, ...]]:
    text = (files("graphopt.rewrite") / "rule_files" / "compilers.txt").read_text()
    return {block.split("\n", 1)[0]: parse_rules(block.split("\n", 1)[1]) for block in text.split("\n## ")[1:]}


def saturated(program: Program, rules: tuple[Rule, ...]) -> Counter[str]:
    """Matches of rules, by name, once an e-graph has been grown."""
    classes = TermClasses(program.terms)
    classes.add_program(program.outputs)
    both = (*load_rules("handwritten"), *rules)
    Explorer(both, classes).run(LIMITS)
    found = LoopFinder(rules, classes, static=False).found(range(len(rules)))
    return Counter({rules[number].name: len(places) for number, places in found.items()})


def saved(program: Program, name: str, rules: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
    """Per cent of the roofline's price that Tensat saves by such files of rules, and the rules of its answer."""
    machine = construct(registry.option("machine", "gpu2"), "machine")
    task = construct(registry.option("task", "rewrite") | {"rules": list(rules)}, "task", {"machine": machine})
    cost = construct(registry.option("cost", "flops"), "cost", {"machine": machine})
    problem = task.open(graph_of(program, name=name), cost, evals=10**6, seconds=SECONDS)
    problem.count_processor_time()
    with suppress(OutOfBudget):
        construct(registry.option("algo", "tensat"), "algo").solve(problem)
    return 100 * (1 - problem.best_cost / (problem.initial_cost or 1.0)), problem.best_rules


def savings() -> None:
    added = {rule.name for family in families().values() for rule in family}
    for name, program in programs():
        without, _ = saved(program, name, BEFORE)
        found, rules = saved(program, name, (*BEFORE, ADDED))
        say(f"saved/{name}", [found], "%", {"without": without, "used": sorted(added.intersection(rules))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--savings", action="store_true", help="by program: what they save")
    if parser.parse_args().savings:
        return savings()
    named = families()
    rules = tuple(rule for family in named.values() for rule in family)
    direct, later, where = Counter[str](), Counter[str](), dict[str, set[str]]()
    for name, program in programs():
        for match in Matcher(rules, program.terms).matches(program.live()):
            direct[match.rule.name] += 1
            where.setdefault(match.rule.name, set()).add(name)
        later += saturated(program, rules)
    for family, members in named.items():
        places = {name for rule in members for name in where.get(rule.name, ())}
        say(f"matches/{family}", [sum(direct[rule.name] for rule in members)], "1", {"programs": len(places)})
        say(f"matches_saturated/{family}", [sum(later[rule.name] for rule in members)], "1")


if __name__ == "__main__":
    main()
