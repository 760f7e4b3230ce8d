"""Rules with one mistake: another stride, padding, activation, axis, part or operator, or two operands exchanged."""

from collections.abc import Iterator
from dataclasses import replace

from graphopt.rewrite.rules.expressions import Literal
from graphopt.rewrite.rules.patterns import Node, Pattern
from graphopt.rewrite.rules.rule import Rule

ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")
STRIDES, PADS = ((1, 1), (2, 2), (1, 2)), ((0, 0, 0, 0), (1, 1, 1, 1), (1, 1, 0, 0))
PARAMS = {"conv": (STRIDES, PADS, ACTIVATIONS), "matmul": (ACTIVATIONS,), "concat": (range(4),), "split": (range(4),),
          "item": (range(2),)}  # fmt: skip
ALIKE = {"relu": ("tanh",), "tanh": ("sigmoid",), "sigmoid": ("relu",), "add": ("mul",), "mul": ("add",)}


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """What was changed in the targets, and the changed rule."""
    for place, target in enumerate(rule.targets):
        for mistake, changed in _changed(target):
            targets = (*rule.targets[:place], changed, *rule.targets[place + 1 :])
            yield mistake, replace(rule, targets=targets)


def _changed(pattern: Pattern) -> Iterator[tuple[str, Pattern]]:
    if not isinstance(pattern, Node):
        return
    for k, options in enumerate(PARAMS.get(pattern.operator, ())):
        param = pattern.params[k]
        for value in options:
            if isinstance(param, Literal) and param.value != value:
                params = (*pattern.params[:k], Literal(value), *pattern.params[k + 1 :])
                yield f"{pattern.operator} {param} to {Literal(value)}", replace(pattern, params=params)
    for operator in ALIKE.get(pattern.operator, ()):
        yield f"{pattern.operator} to {operator}", replace(pattern, operator=operator)
    if len(pattern.inputs) == 2 and pattern.inputs[0] != pattern.inputs[1]:
        yield f"operands of {pattern.operator}", replace(pattern, inputs=pattern.inputs[::-1])
    for k, inner in enumerate(pattern.inputs):
        for mistake, changed in _changed(inner):
            yield mistake, replace(pattern, inputs=(*pattern.inputs[:k], changed, *pattern.inputs[k + 1 :]))
