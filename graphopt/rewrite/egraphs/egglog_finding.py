"""Finds where rules match by egglog (Zhang et al., PLDI 2023), which keeps an e-graph of its own beside the classes.

Rules have conditions on shapes and compute parameters, for which egglog's own language has no words. So every pattern
becomes an egglog rule that writes what it binds into a table. The rows are read and conditions checked here, as for any
store of terms; new terms and equal pairs go to egglog as rows of tables. Values of parameters are numbered; terms have
their numbers in the store, classes the least number of their terms.

Needs the package `egglog` (extra `egraph`).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graphopt.errors import ConfigError
from graphopt.rewrite.egraphs.eclasses import TermClasses
from graphopt.rewrite.egraphs.finding import places
from graphopt.rewrite.rules.compiling import function_of, test_of
from graphopt.rewrite.rules.expressions import Call, Expression, Listed, Literal, Parameter
from graphopt.rewrite.rules.joining import Found, Join, Place
from graphopt.rewrite.rules.pattern_writing import local_conditions, names_of
from graphopt.rewrite.rules.patterns import Node, Pattern
from graphopt.rewrite.rules.rule import Rule

Row = tuple[int, ...]


class EgglogFinder:
    """The engine `egglog`."""

    def __init__(self, rules: Sequence[Rule], classes: TermClasses) -> None:
        self.classes, self.database, self.numbers = classes, _Database(), _Numbers()
        self._pushed = self._merged = 0
        view: Any = classes  # it has what conditions use of Terms: types, static
        self._sources = [
            [_Source(rule, index, f"M{number}_{index}", self, view) for index in range(len(rule.sources))]
            for number, rule in enumerate(rules)
        ]
        self._joins = {n: Join(rule, view) for n, rule in enumerate(rules) if len(rule.sources) > 1}

    def found(self, rules: Sequence[int]) -> dict[int, list[Place]]:
        self._push()
        self.database.run("(run-schedule (saturate (run act)) (run match))")
        tables = [source.table for n in rules for source in self._sources[n]]
        rows = dict(zip(tables, self.database.rows(tables)))
        result: dict[int, list[Place]] = {}
        for n in rules:
            founds = [source.matches(rows[source.table], again=n in self._joins) for source in self._sources[n]]
            if n in self._joins:
                result[n] = places(self._joins[n], founds, self.classes)
            else:
                result[n] = [((root,), values) for root, values in founds[0]]
        return result

    def forget(self, rule: int) -> None:
        for source in self._sources[rule]:
            source.seen.clear()

    def _push(self) -> None:
        """Tells egglog what came since the last time."""
        classes, rows = self.classes, dict[str, list[Row]]()
        born = list(classes.born)
        for term in born[self._pushed :]:
            operation, inputs = classes.operation[term], classes.inputs[term]
            call = self.database.operator(operation.name, len(operation.params), len(inputs))
            rows.setdefault(f"New_{call}", []).append((term, *map(self.numbers.of, operation.params), *inputs))
        rows["Equal"] = [*classes.merges[self._merged :]]
        self._pushed, self._merged = len(born), len(classes.merges)
        for table, lines in rows.items():
            self.database.fill(table, lines)


class _Source:
    """One source of a rule as an egglog rule, and its rows as matches."""

    def __init__(self, rule: Rule, index: int, table: str, finder: EgglogFinder, view: Any) -> None:
        self.table, self.classes, self.numbers = table, finder.classes, finder.numbers
        self.names = names_of(rule.sources[index])
        self._params: list[Expression] = []  # what the numbers of a row are, after its terms
        self._terms: list[str] = []  # names of the terms of a row, after the root
        self._facts: list[str] = []
        root = self._node(rule.sources[index], finder)
        reads = "".join(f" (= n{k} (least v{name[1:]}))" for k, name in enumerate(self._terms))
        row = " ".join(["r", *(f"n{k}" for k in range(len(self._terms))), *(f"p{k}" for k in range(len(self._params)))])
        finder.database.run(f"""
            (relation {table} ({"i64 " * len(row.split())}))
            (rule ({" ".join(self._facts)} (= r (least {root})){reads}) (({table} {row})) :ruleset match)
        """)
        self._computed = [part for param in self._params for part in _calls(param)]
        self._values = function_of(self.names, self._computed, view)
        self._holds = test_of(self.names, local_conditions(rule, index), view)
        self.seen: set[Row] = set()

    def _node(self, node: Node, finder: EgglogFinder) -> str:
        """Adds what makes the node to the facts; its variable."""
        params = []
        for param in node.params:
            if isinstance(param, Literal):
                params.append(str(self.numbers.of(param.value)))
            elif param in self._params and isinstance(param, Parameter):
                params.append(f"p{self._params.index(param)}")
            else:
                params.append(f"p{len(self._params)}")
                self._params.append(param)
        inputs = [self._input(i, finder) for i in node.inputs]
        call = finder.database.operator(node.operator, len(params), len(inputs))
        name = f"e{len(self._facts)}"
        self._facts.append(f"(= {name} ({call} {' '.join([*params, *inputs])}))")
        return name

    def _input(self, pattern: Pattern, finder: EgglogFinder) -> str:
        if isinstance(pattern, Node):
            return self._node(pattern, finder)
        if str(pattern) not in self._terms:
            self._terms.append(str(pattern))
        return f"v{pattern.name}"

    def matches(self, rows: Iterable[Row], *, again: bool) -> Found:
        """Matches of rows that are new, or of all."""
        find, static, found = self.classes.find, self.classes.static, dict[Row, Any]()
        many = 1 + len(self._terms)
        for row in rows:
            if row in self.seen and not again:
                continue
            self.seen.add(row)
            now = (*map(find, row[:many]), *row[many:])
            if not static[now[0]] and now not in found:
                found[now] = self._bound(now)
        return [(now[0], values) for now, values in found.items() if values is not None]

    def _bound(self, row: Row) -> tuple[Any, ...] | None:
        """Values by `names_of`; None where parameters or conditions do not hold."""
        binding: dict[str, Any] = dict(zip(self._terms, row[1:]))
        expected: list[Any] = []
        for param, number in zip(self._params, row[1 + len(self._terms) :]):
            if not _bind(param, self.numbers.values[number], binding, expected):
                return None
        values = tuple(binding[name] for name in self.names)
        if list(self._values(*values)) != expected or not self._holds(*values):
            return None
        return values


def _bind(param: Expression, value: Any, binding: dict[str, Any], expected: list[Any]) -> bool:
    """Whether a parameter can have that value; notes what it binds, and what a computed one must be."""
    match param:
        case Literal():
            return bool(param.value == value)
        case Parameter():
            return bool(binding.setdefault(str(param), value) == value)
        case Listed():
            fits = len(param.items) == len(value)
            return fits and all(_bind(item, part, binding, expected) for item, part in zip(param.items, value))
    expected.append(value)
    return True


def _calls(param: Expression) -> list[Expression]:
    """Computed parts, in the order in which `_bind` meets them."""
    if isinstance(param, Listed):
        return [call for item in param.items for call in _calls(item)]
    return [param] if isinstance(param, Call) else []


class _Numbers:
    """Numbers for values of parameters, and back. Equal values of different types are told apart."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[tuple[type, Any], int] = {}

    def of(self, value: Any) -> int:
        key = (type(value), value)
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(value)
        return self._known[key]


class _Database:
    """An egglog e-graph of sort `T`: one constructor per operator, number of parameters and of inputs."""

    def __init__(self) -> None:
        try:
            from egglog import bindings
        except ImportError:
            raise ConfigError("engine=egglog needs the package egglog: pip install -e .[egraph]") from None
        self._folder = TemporaryDirectory()
        self._graph = bindings.EGraph(fact_directory=self._folder.name)
        self._operators: set[str] = set()
        self._files = 0
        self.run("""
            (sort T) (ruleset match) (ruleset act)
            (function node (i64) T :merge old) (function least (T) i64 :merge (min old new))
            (relation Equal (i64 i64))
            (rule ((Equal i j) (= x (node i)) (= y (node j))) ((union x y)) :ruleset act)
        """)

    def run(self, text: str) -> None:
        self._graph.run_program(*self._graph.parse_program(text))

    def rows(self, tables: Sequence[str]) -> list[list[Row]]:
        """Rows of relations."""
        number, functions = self._graph.value_to_i64, self._graph.freeze().functions
        return [[tuple(map(number, row.inputs)) for row in functions[table].rows] for table in tables]

    def fill(self, table: str, rows: Sequence[Row]) -> None:
        """Adds rows to a relation; through a file, since egglog takes 100 times as long for single facts."""
        if rows:
            self._files += 1
            file = Path(self._folder.name) / f"{self._files}.tsv"
            file.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
            self.run(f'(input {table} "{file.name}")')

    def operator(self, name: str, params: int, inputs: int) -> str:
        """The constructor of an operator; `New_...` is the table of (number, parameters, inputs) that makes terms."""
        call = f"{name}_{params}_{inputs}"
        if call not in self._operators:
            self._operators.add(call)
            p, x = [f"p{k}" for k in range(params)], [f"x{k}" for k in range(inputs)]
            looked_up = " ".join(f"(= {k} (node {k}i))" for k in x)
            self.run(f"""
                (constructor {call} ({"i64 " * params} {"T " * inputs}) T)
                (relation New_{call} ({"i64 " * (1 + params + inputs)}))
                (rule ((New_{call} i {" ".join(p)} {" ".join(f"{k}i" for k in x)}) {looked_up})
                      ((let t ({call} {" ".join([*p, *x])})) (set (node i) t) (set (least t) i)) :ruleset act)
            """)
        return call
