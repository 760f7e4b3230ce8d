"""The rules that come with the package, rule_files/*.txt."""

from importlib.resources import files

from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.rule import RuleError, RuleSet
from graphopt.rewrite.rules.symmetry import canonical

FOLDER = "rule_files"


def load_rules(*names: str) -> RuleSet:
    """Rules of packaged files, all files where none is named; of rules that differ in names alone, the first. Raises
    RuleError for a file that is not there."""
    folder = files("graphopt.rewrite") / FOLDER
    there = sorted(f.name.removesuffix(".txt") for f in folder.iterdir() if f.name.endswith(".txt"))
    missing = sorted(set(names) - set(there))
    if missing:
        raise RuleError(f"no rule file {missing[0]!r}; there are {', '.join(there)}")
    rules = [rule for name in names or there for rule in parse_rules((folder / f"{name}.txt").read_text())]
    return tuple({canonical(rule): rule for rule in reversed(rules)}.values())[::-1]
