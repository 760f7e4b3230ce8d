"""Every yaml file of every group: its keys are its constructor's arguments, and it composes."""

import inspect

import pytest
from hydra import compose, initialize_config_dir

from graphopt import CONF
from graphopt.config.construct import INJECTED, arguments_of, target_of
from graphopt.utils.registry import option, options

GROUPS = ("dataset", "task", "machine", "cost", "encoder", "algo", "trainer", "logger")
FILES = [(group, name) for group in GROUPS for name in options(group)]


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda value: str(value))
def test_keys_are_the_constructors_arguments(group: str, name: str) -> None:
    node = option(group, name)
    arguments = arguments_of(target_of(node, group))
    given = set(node) - {"_target_"}
    assert node["name"] == name
    assert set(arguments) - INJECTED <= given, "missing in the yaml file"
    assert given <= set(arguments), "no argument of the constructor"
    assert not given & INJECTED, "provided by the run"
    defaults = [key for key, p in arguments.items() if p.default is not inspect.Parameter.empty]
    assert not defaults, "defaults live in yaml files only"


def test_the_default_configuration_and_every_experiment_compose() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        plain = compose("config")
        assert all(plain[group]["name"] for group in (*GROUPS, "judge"))
        for name in options("experiment"):
            assert set(compose("config", overrides=[f"experiment={name}"])) == set(plain), name
