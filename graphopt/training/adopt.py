"""A checkpoint brings its network's settings along: with `ckpt=...` nobody has to repeat encoder and sizes.

What the command line (or an experiment) left as the yaml files have it, is as it was in training. What it set, stays;
if the weights do not fit that, the run ends with a sentence that says what differs. Only settings of the network are
taken; those of searching with it are the run's own.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

from graphopt import CONF
from graphopt.config import compatibility
from graphopt.config.construct import Node, target_of
from graphopt.errors import UserError
from graphopt.utils import registry
from graphopt.utils.printable import say


def adopt(config: Any) -> Any:
    """The composed configuration with the encoder and network settings of its checkpoint, if it has one. What is wrong
    with the checkpoint is not said here but when the cell comes to load it, where it becomes a row."""
    if config.get("ckpt") is None:
        return config
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    with contextlib.suppress(UserError):
        plain = said(with_network(plain), plain)
    return OmegaConf.create(plain)


def said(found: dict[str, Any], config: Node) -> dict[str, Any]:
    """A configuration `with_network`, after a line about what it has of its checkpoint, if anything."""
    if taken := _words(found, config):
        say(f"ckpt={config['ckpt']} brings {', '.join(taken)}")
    return found


def with_network(config: Node) -> dict[str, Any]:
    """The same on plain containers, without a word. Raises UserError when there is no such checkpoint, or an option is
    gone."""
    algo = target_of(config["algo"], "algo")
    if not compatibility.learns(algo):
        return dict(config)
    from graphopt.training import checkpoint

    place = checkpoint.find(str(config["ckpt"]), config)
    stored = checkpoint.settings_of(checkpoint.load(place), algo.network_settings)
    if stored is None or registry.base("algo", stored["algo"]) != registry.base("algo", config["algo"]):
        return dict(config)
    return {
        **config,
        "encoder": _encoder(config["encoder"], stored["encoder"]),
        "algo": _algo(config["algo"], stored["algo"], algo.network_settings),
    }


def _words(found: Node, config: Node) -> list[str]:
    """What is taken from the checkpoint, as the command line would say it."""
    from graphopt.training.checkpoint import differences

    encoder = found["encoder"]
    if encoder["name"] == config["encoder"]["name"]:
        return [f"{path}={value}" for path, value, _ in differences(found, config)]
    keys = [f"encoder.{key}={value}" for key, value in encoder.items() if key not in ("_target_", "name")]
    inner = [f"{path}={value}" for path, value, _ in differences(found["algo"], config["algo"], "algo")]
    return [f"encoder={encoder['name']}", *keys, *inner]


def _encoder(chosen: Node, stored: Node) -> Node:
    """The stored encoder, unless another was chosen."""
    if chosen["name"] != stored["name"]:
        if chosen != registry.option("encoder", _usual_encoder()):
            return chosen
        chosen = registry.option("encoder", stored["name"])
    inherited: Node = inherit(chosen, registry.option("encoder", stored["name"]), stored)
    return inherited


def _usual_encoder() -> str:
    """The option that a run has unless it names another."""
    from omegaconf import OmegaConf

    groups = OmegaConf.load(CONF / "config.yaml").defaults
    return next(str(entry["encoder"]) for entry in groups if "encoder" in entry)


def _algo(chosen: Node, stored: Node, network_settings: frozenset[str]) -> Node:
    """The chosen algorithm with the stored settings of its network."""
    usual = registry.option("algo", registry.base("algo", chosen))
    both = network_settings & chosen.keys() & stored.keys() & usual.keys()
    return {**chosen, **{key: inherit(chosen[key], usual[key], stored[key]) for key in both}}


def inherit(chosen: Any, usual: Any, stored: Any) -> Any:
    """The stored value where the chosen one is the usual one, key by key; keys are those of the chosen."""
    if all(isinstance(value, Mapping) for value in (chosen, usual, stored)):
        return {key: inherit(value, usual.get(key), stored.get(key, value)) for key, value in chosen.items()}
    return stored if chosen == usual else chosen
