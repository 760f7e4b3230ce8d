"""`ckpt=` before torch is loaded: its file, and the settings of its network, which it brings along.

Settings that the command line (or an experiment) leaves at the yaml files' values are as in training. Settings that it
changes stay; if the weights do not fit them, the run ends with a sentence on the difference. Only settings of the
network are taken; those of searching with it are the run's own.
"""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.core.errors import UsageError, UserError
from graphopt.core.utils import registry
from graphopt.core.utils.terminal import say
from graphopt.run.config import compatibility
from graphopt.run.config.construct import Node, target_of

PRETRAINED = Path(__file__).resolve().parents[2] / "learn" / "pretrained"  # weights alone, by `graphopt study ship`
ANY = "any"  # in the name of a packaged checkpoint
RUNTIME = "runtime"  # the objective of cost models that say none


def adopt(config: Any) -> Any:
    """The composed configuration with the encoder and network settings of its checkpoint, if it has one. Errors of the
    checkpoint are raised when the cell loads it, where they become a row."""
    if config.get("ckpt") is None:
        return config
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    with contextlib.suppress(UserError):
        plain = said(with_network(plain), plain)
    return OmegaConf.create(plain)


def said(found: dict[str, Any], config: Node) -> dict[str, Any]:
    """A configuration `with_network`, after a line about settings from its checkpoint, if any."""
    if taken := _words(found, config):
        say(f"ckpt={config['ckpt']} brings {', '.join(taken)}")
    return found


def with_network(config: Node) -> dict[str, Any]:
    """The same on plain containers, without a word. Raises UserError when there is no such checkpoint, or an option is
    gone."""
    algo = target_of(config["algo"], "algo")
    if not compatibility.learns(algo):
        return dict(config)
    from graphopt.run.training import checkpoint

    stored = checkpoint.settings_of(checkpoint.load(find(str(config["ckpt"]), config)), config)
    if stored is None or registry.base("algo", stored["algo"]) != registry.base("algo", config["algo"]):
        return dict(config)
    usual = registry.option("algo", registry.base("algo", config["algo"]))
    both = algo.network_settings & config["algo"].keys() & stored["algo"].keys() & usual.keys()
    inherited = {key: inherit(config["algo"][key], usual[key], stored["algo"][key]) for key in both}
    encoder = {"encoder": _encoder(config["encoder"], stored["encoder"])} if "encoder" in stored else {}
    return {**config, **encoder, "algo": {**config["algo"], **inherited}}


def _words(found: Node, config: Node) -> list[str]:
    """Settings from the checkpoint, as words of the command line."""
    from graphopt.run.training.checkpoint import differences

    encoder = found["encoder"]
    if encoder["name"] == config["encoder"]["name"]:
        return [f"{path}={value}" for path, value, _ in differences(found, config)]
    keys = [f"encoder.{key}={value}" for key, value in encoder.items() if key not in ("_target_", "name")]
    inner = [f"{path}={value}" for path, value, _ in differences(found["algo"], config["algo"], "algo")]
    return [f"encoder={encoder['name']}", *keys, *inner]


def _encoder(chosen: Node, stored: Node) -> Node:
    """The stored encoder, unless another was chosen."""
    if chosen["name"] != stored["name"]:
        if chosen != registry.option("encoder", compatibility.usual("encoder")):
            return chosen
        chosen = registry.option("encoder", stored["name"])
    inherited: Node = inherit(chosen, registry.option("encoder", stored["name"]), stored)
    return inherited


def inherit(chosen: Any, usual: Any, stored: Any) -> Any:
    """The stored value where the chosen one is the usual one, key by key; keys are those of the chosen."""
    if all(isinstance(value, Mapping) for value in (chosen, usual, stored)):
        return {key: inherit(value, usual.get(key), stored.get(key, value)) for key, value in chosen.items()}
    return stored if chosen == usual else chosen


def find(place: str, config: Mapping[str, Any]) -> Path:
    """The file meant by `ckpt=`: itself, ckpt/best.ckpt of a run's folder, or with `pretrained` the packaged one."""
    if place == "pretrained":
        return packaged(config)
    path = Path(place)
    return path / "ckpt" / "best.ckpt" if path.is_dir() else path


def packaged(config: Mapping[str, Any]) -> Path:
    """The checkpoint that comes with the package for the run's algorithm, task and objective. Raises UsageError, with
    the existing ones, when there is none."""
    path = PRETRAINED / packaged_name(config)
    if not path.is_file():
        stored = [_purpose_words(tuple(file.stem.split("-"))) for file in sorted(PRETRAINED.glob("*.ckpt"))]
        raise UsageError(
            f"ckpt=pretrained: no checkpoint comes with graphopt for {_purpose_words(_purpose(config))}; "
            f"there are: {'; '.join(stored) or 'none'}; choose one of these, or train with ckpt=null"
        )
    return path


def packaged_name(config: Mapping[str, Any]) -> str:
    """The file name of a packaged checkpoint for a problem. Raises UserError for invalid names."""
    for part in _purpose(config):
        if not re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9_.+]*", part):
            raise UserError(f"{part!r} is no name that a packaged checkpoint can have: letters, digits and _ only")
    return f"{'-'.join(_purpose(config))}.ckpt"


def _purpose(config: Mapping[str, Any]) -> tuple[str, str, str]:
    algo = registry.base("algo", config["algo"])
    if getattr(target_of(config["algo"], "algo"), "any_purpose", False):  # only learners say
        return algo, ANY, ANY
    cost = config["cost"]
    objective = cost["objective"] if "objective" in cost else getattr(target_of(cost, "cost"), "objective", RUNTIME)
    return algo, str(config["task"]["name"]), str(objective)


def _purpose_words(purpose: tuple[str, ...]) -> str:
    return ", ".join(f"{key}={value}" for key, value in zip(("algo", "task", "cost.objective"), purpose))
