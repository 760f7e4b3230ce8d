"""Puts the checkpoint of a finished cell into the package, where `ckpt=pretrained` finds it.

`graphopt study ship CELL_FOLDER` writes graphopt/learn/pretrained/ALGO-TASK-OBJECTIVE.ckpt: the weights that solving
needs, the settings of their network and the cost of training, nothing else. TASK and OBJECTIVE are `any` where one
network serves all.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.utils import registry
from graphopt.core.utils.limits import MIB, read_bytes
from graphopt.core.utils.terminal import say
from graphopt.run.config.construct import target_of
from graphopt.run.config.stored import RESERVED, class_of, node_of
from graphopt.run.training import adopt, checkpoint

LIMIT = 500_000  # bytes of a file


def ship(cell: Path, folder: Path, *, half: bool) -> Path:
    """Writes the stripped checkpoint of a cell into `folder`, in half precision if asked for; returns the file. An
    algorithm of an experiment alone ships as the option that it is. Raises UserError when there is nothing to ship or
    it is too large."""
    if not (cell / "config.yaml").is_file():
        raise UserError(f"{cell} is not a cell: it has no config.yaml; give a folder OUTPUT_DIR/STUDY/CELL")
    config = stored_config(cell / "config.yaml")
    config["algo"]["name"] = registry.base("algo", config["algo"])
    state = stripped(checkpoint.load(adopt.find(str(cell), config)), config, half=half)
    state["plain"] = json.dumps(json.loads(state["plain"]) | {"note": {"cell": cell.resolve().name}})
    size = checkpoint.size(state)
    if size > LIMIT:
        advice = "train a smaller network" if half else "use --half or train a smaller network"
        raise UserError(f"the checkpoint takes {size:,} bytes, more than the {LIMIT:,} that ship; {advice}")
    path = folder / adopt.packaged_name(config)
    checkpoint.save(path, state)
    return path


def stored_config(path: Path) -> dict[str, Any]:
    """The part of a cell's configuration that its checkpoint needs: options of this installation, and plain values.
    Raises UserError."""
    text = read_bytes(path, MIB).decode(errors="replace")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise Unreadable(f"{path} holds references, which a cell's configuration has none of")
        said: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
        network: Iterable[str] = getattr(class_of("algo", said["algo"]), "network_settings", ())
        kept: dict[str, Iterable[str]] = {"algo": network, "task": (), "cost": ("objective",)}
        for group, keys in kept.items():
            of = said[group].items() if isinstance(said[group], Mapping) else ()
            said[group] = {key: value for key, value in of if key in (*RESERVED, "name", *keys)}
        return {group: node_of(group, said[group]) for group in ("encoder", *kept)}
    except (yaml.YAMLError, OmegaConfBaseException, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(f"{path} is no configuration of a cell ({type(error).__name__})") from None


def stripped(state: checkpoint.State, config: Mapping[str, Any], *, half: bool) -> checkpoint.State:
    """The state without parts that only training needs. Settings come from the cell's configuration."""
    training_only = target_of(config["algo"], "algo").training_only
    weights = {
        name: _rounded(value, half) for name, value in state["state_dict"].items() if not name.startswith(training_only)
    }
    plain = json.loads(state["plain"]) | {"settings": checkpoint.settings_in(config), "random": {}}
    return {"state_dict": weights, "torch_random": [], "plain": json.dumps(plain)}


def _rounded(value: Tensor, half: bool) -> Tensor:
    """A copy of its own, since a view would be stored with all that it is a view of."""
    return value.half() if half and value.is_floating_point() else value.clone()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt study ship", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("cell", type=Path, help="folder of a finished cell, with ckpt/best.ckpt")
    parser.add_argument("--half", action="store_true", help="store numbers in half precision")
    parser.add_argument("--folder", type=Path, default=adopt.PRETRAINED, help="where to write instead")
    args = parser.parse_args(arguments)
    path = ship(args.cell, args.folder, half=args.half)
    say(f"{path}: {path.stat().st_size:,} bytes")
    return 0
