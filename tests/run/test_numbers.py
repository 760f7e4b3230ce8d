"""Every numeric setting of every option is finite and in a range. The settings are found from the constructors' types,
so a new option is tested without an edit here."""

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

import graphopt
from graphopt.core.cli import composed
from graphopt.core.errors import UserError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.utils.marks import Between
from graphopt.core.utils.registry import option, options
from graphopt.run.cell import Settings, settings_of
from graphopt.run.config.construct import INJECTED, arguments_of, construct, convert, hints_of, locate

GROUPS = ("dataset", "task", "machine", "cost", "encoder", "algo", "trainer", "logger")
FILES = [(group, name) for group in GROUPS for name in options(group)]
NOTHING = dict.fromkeys(INJECTED)
INFINITE = (math.nan, math.inf, -math.inf)

Path = tuple[str | int, ...]


def numbers_in(hint: Any, value: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """(place, type, what to put there around the number) of the numbers that a setting holds. value: in yaml."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(value, Mapping) and "_target_" in value:
        yield from numbers_of(value, path)
    elif hint in (int, float, Any) or (origin is Annotated and inner[0] in (int, float)):
        yield path, hint, lambda number: number
    elif dataclasses.is_dataclass(hint):
        for key, one in hints_of(hint).items():
            if key != "return":
                yield from numbers_in(one, value.get(key) if isinstance(value, Mapping) else None, (*path, key))
    elif origin in (list, tuple, Sequence, dict, Mapping):
        for _, found, around in numbers_in(inner[-1] if inner[-1] is not Ellipsis else inner[0], None, path):
            wrap = (lambda number, a=around: {"x": a(number)}) if origin in (dict, Mapping) else (
                lambda number, a=around: [a(number)])  # fmt: skip
            yield path, found, wrap
    elif origin is not typing.Literal and origin is not Annotated:
        for one in inner:
            yield from numbers_in(one, value, path)


def numbers_of(node: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """The same of a node of a yaml file."""
    hints = hints_of(locate(str(node["_target_"]), "test"))
    for key in arguments_of(locate(str(node["_target_"]), "test")):
        if key not in INJECTED:
            yield from numbers_in(hints[key], node.get(key), (*path, key))


def wrong_for(hint: Any) -> list[float]:
    """Numbers that a setting of that type must refuse."""
    if hint is Any:
        return list(INFINITE)
    between = typing.get_args(hint)[1]
    return [
        number for number in (*INFINITE, -1, between.least - 1, 1e308) if not between.least <= number <= between.most
    ]


def changed(node: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    copy: Any = deepcopy(dict(node))
    place = copy
    for key in path[:-1]:
        place = place[key] if isinstance(place, list) else place.get(key)
        if not isinstance(place, dict | list):
            return {}
    place[path[-1]] = value
    return copy


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda value: str(value))
def test_every_number_of_an_option_is_finite_and_in_its_range(group: str, name: str) -> None:
    node = option(group, name)
    for path, hint, around in numbers_of(node):
        where = ".".join(map(str, path))
        if hint is not Any:
            assert typing.get_origin(hint) is Annotated, f"{group}={name}: {where} has no range"
        for number in wrong_for(hint):
            bad = changed(node, path, around(number))
            if bad:  # a part that is null in the file has its own test, of the option that has it
                with pytest.raises(UserError) as caught:
                    construct(bad, group, NOTHING)
                assert str(path[-1]) in str(caught.value) and "must be" in str(caught.value), (where, number)


def test_the_walk_finds_numbers_at_every_depth() -> None:
    found = {".".join(map(str, path)) for path, _, _ in numbers_of(option("dataset", "tiling"))}
    assert {"random.train", "random.products", "random.graph_seed"} <= found


def test_a_range_refuses_what_is_no_number() -> None:
    for number in INFINITE:
        assert not Between(0.0, 1e12).holds(number)
        with pytest.raises(UserError, match="finite"):
            convert(number, float, "x")
        with pytest.raises(UserError, match="finite"):
            convert({"a": [1.0, number]}, Any, "x")
    assert convert(math.inf, Annotated[float, Between(0.0, math.inf)], "x") == math.inf
    with pytest.raises(UserError, match="must be from 0 to inf"):
        convert(math.nan, Annotated[float, Between(0.0, math.inf)], "x")


@pytest.mark.parametrize("key", ["budget.evals", "budget.seconds", "seed"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e308"])
def test_the_runs_own_numbers(key: str, value: str) -> None:
    config = composed([])
    *parents, last = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    node[last] = OverridesParser.create().parse_override(f"x={value}").value()
    with pytest.raises(UserError, match=rf"{key}.* must be"):
        settings_of(config)


def test_no_number_of_the_run_was_forgotten() -> None:
    """As above, from the types: a key that comes later needs a range too."""
    found = {path: hint for path, hint, _ in numbers_in(Settings, None, ())}
    assert {path[-1] for path in found} == {"evals", "seconds", "seed"}
    assert all(typing.get_origin(hint) is Annotated for hint in found.values())


# --- Machines, from yaml and from Python.

FIELDS = [(kind, field.name) for kind in (Device, TransferRule) for field in dataclasses.fields(kind)
          if any(hint for _, hint, _ in numbers_in(hints_of(kind)[field.name], None, ())) 
          and field.name != "numbers"]  # fmt: skip


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_number_of_a_machine(kind: type, field: str) -> None:
    ((_, hint, _),) = numbers_in(hints_of(kind)[field], None, ())
    for number in wrong_for(hint):
        with pytest.raises(UserError, match=rf"{field}=.* must be"):
            kind(**{field: number})
        node = option("machine", "gpu2")
        (node["devices"]["gpu"] if kind is Device else node["transfer"])[field] = number
        with pytest.raises(UserError, match=rf"{field}=.* must be"):
            construct(node, "machine")


@pytest.mark.parametrize("key", ["link_bandwidth", "link_latency"])
def test_a_link_of_a_machine_made_in_python(key: str) -> None:
    devices = (Device(name="a"), Device(name="b"))
    for number in (math.nan, -math.inf, -1.0):
        for value in (number, ((1.0, 1.0), (number, 1.0))):
            with pytest.raises(ValueError, match="link"):
                Machine(name="m", devices=devices, **{key: value})
    assert Machine(name="m", devices=devices, link_bandwidth=math.inf).num_devices == 2
    with pytest.raises(UserError, match="numbers"):
        Device(numbers=(1.0, math.nan))


@pytest.mark.parametrize(
    "wrong", [{"budget": -1}, {"seconds": math.nan}, {"seconds": -1.0}, {"seconds": math.inf}, {"seed": -1},
              {"budget": 10**400}, {"settings": ["machine.link_bandwidth=nan"]}]
)  # fmt: skip
def test_numbers_that_a_program_gives(wrong: dict[str, Any]) -> None:
    builder = GraphBuilder("two", "test")
    x = builder.tensor((4,))
    for _ in range(2):
        y = builder.tensor((4,))
        builder.op("relu", [x], [y])
        x = y
    with pytest.raises(UserError, match=r"must be|too large"):
        graphopt.optimize(builder.build(), **wrong)
