"""Names do not matter: rules up to renaming, and sources that may change places."""

from collections.abc import Mapping

from graphopt.rewrite.rules.expressions import Call, Comparison, Condition, Expression, Listed, Parameter, Variable
from graphopt.rewrite.rules.patterns import Node, Pattern
from graphopt.rewrite.rules.rule import Rule


def renamed(rule: Rule, names: Mapping[str, str], name: str = "") -> Rule:
    """The rule with names, signs in front, exchanged for others; those not mentioned stay."""
    return Rule(
        name,
        tuple(_node(source, names) for source in rule.sources),
        tuple(_pattern(target, names) for target in rule.targets),
        tuple(_condition(condition, names) for condition in rule.conditions),
    )


def canonical(rule: Rule) -> Rule:
    """The nameless rule with its names replaced by x0, x1, ... in the order in which they occur."""
    order: dict[str, str] = {}
    for source in rule.sources:
        for found in _occurring(source):
            order.setdefault(found, f"{found[0]}x{len(order)}")
    return renamed(rule, order)


def symmetric(rule: Rule) -> bool:
    """Whether the sources may change places: the rule looks the same but for names, which side of a concat aside."""
    if len(rule.sources) != 2:
        return False
    swapped = Rule("", rule.sources[::-1], rule.sources[::-1], rule.conditions)
    plain, mirror = (canonical(Rule("", r.sources, r.sources, r.conditions)) for r in (rule, swapped))
    return plain.sources == mirror.sources and set(map(_unordered, plain.conditions)) == set(
        map(_unordered, mirror.conditions)
    )


def _unordered(condition: Condition) -> object:
    if isinstance(condition, Comparison) and condition.sign in ("=", "!="):
        return (condition.sign, frozenset((condition.left, condition.right)))
    if isinstance(condition, Call) and condition.function in ("same_shape", "differ"):
        return (condition.function, frozenset(condition.arguments))
    return condition


def _occurring(part: Pattern | Expression) -> list[str]:
    match part:
        case Variable() | Parameter():
            return [str(part)]
        case Node():
            return [name for inner in (*part.params, *part.inputs) for name in _occurring(inner)]
        case Listed():
            return [name for inner in part.items for name in _occurring(inner)]
        case Call():
            return [name for inner in part.arguments for name in _occurring(inner)]
    return []


def _node(node: Node, names: Mapping[str, str]) -> Node:
    params = tuple(_expression(param, names) for param in node.params)
    return Node(node.operator, params, tuple(_pattern(i, names) for i in node.inputs))


def _pattern(pattern: Pattern, names: Mapping[str, str]) -> Pattern:
    if isinstance(pattern, Node):
        return _node(pattern, names)
    return Variable(names.get(str(pattern), str(pattern))[1:])


def _expression(expression: Expression, names: Mapping[str, str]) -> Expression:
    match expression:
        case Variable() | Parameter():
            return type(expression)(names.get(str(expression), str(expression))[1:])
        case Listed(items):
            return Listed(tuple(_expression(item, names) for item in items))
        case Call(function, arguments):
            return Call(function, tuple(_expression(argument, names) for argument in arguments))
    return expression


def _condition(condition: Condition, names: Mapping[str, str]) -> Condition:
    if isinstance(condition, Comparison):
        return Comparison(condition.sign, _expression(condition.left, names), _expression(condition.right, names))
    made = _expression(condition, names)
    assert isinstance(made, Call)
    return made
