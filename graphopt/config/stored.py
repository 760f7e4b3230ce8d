"""What files (decisions, checkpoints) say of a configuration, and back. A file names options, never classes.

In a file a node of a config group is `{_option_: gpu2, name: ..., ...}`: the name of the yaml file, here
conf/machine/gpu2.yaml, and plain values. When it is read, this installation's yaml file says which class that is. Files
of older versions say `_target_: module.Class` instead; that text is looked up among what the group's yaml files name,
and is never imported. So nothing that a file says is imported or called, whatever it says.

A name can be overridden (`machine.name=mine`), and a node holds all values of its option. So an option only has to name
the class: it is the yaml file called like the node if that one has the node's class, else the first that has it.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphopt import OWN_OPTIONS
from graphopt.config.construct import Node
from graphopt.errors import ConfigError, UserError
from graphopt.utils import registry

OPTION, TARGET, CLASS = "_option_", "_target_", "_class_"  # CLASS: a class that is no option, for messages
RESERVED = (OPTION, TARGET, CLASS)
OWN = frozenset({"cache_dir"})  # keys that are the reader's business, whatever a file says: the yaml file's null

_OWN_HINT = f" (${OWN_OPTIONS} names a folder of further ones)"

# Where classes or whole modules were, as files of older versions have it -> where they are.
MOVED: dict[str, str] = {
    "graphopt.loggers": "graphopt.run.loggers",
    "graphopt.machine": "graphopt.core.machine",
    "graphopt.schedule.Schedule": "graphopt.training.settings.TrainerSettings",
    "graphopt.search.annealing": "graphopt.search.walks.annealing",
    "graphopt.search.brkga": "graphopt.search.genetic.brkga",
    "graphopt.search.brkga_informed": "graphopt.search.genetic.brkga_informed",
    "graphopt.search.brkga_seeded": "graphopt.search.genetic.brkga_seeded",
    "graphopt.search.contiguous": "graphopt.search.pipelines.contiguous",
    "graphopt.search.cpsat": "graphopt.search.solvers.cpsat",
    "graphopt.search.default": "graphopt.search.heuristics.default",
    "graphopt.search.exact": "graphopt.search.solvers.exact",
    "graphopt.search.gp_dfs": "graphopt.search.heuristics.gp_dfs",
    "graphopt.search.inline_all": "graphopt.search.fusion.inline_all",
    "graphopt.search.list_scheduling": "graphopt.search.heuristics.list_scheduling",
    "graphopt.search.load_balance": "graphopt.search.pipelines.load_balance",
    "graphopt.search.local": "graphopt.search.walks.local",
    "graphopt.search.pet": "graphopt.search.rewriting.pet",
    "graphopt.search.progressive": "graphopt.search.walks.progressive",
    "graphopt.search.random": "graphopt.search.walks.random",
    "graphopt.search.regal_local": "graphopt.search.walks.regal_local",
    "graphopt.search.rewrite_greedy": "graphopt.search.rewriting.rewrite_greedy",
    "graphopt.search.rewrite_random": "graphopt.search.rewriting.rewrite_random",
    "graphopt.search.rules_scan": "graphopt.search.fusion.rules_scan",
    "graphopt.search.scan": "graphopt.search.walks.scan",
    "graphopt.search.taso": "graphopt.search.rewriting.taso",
    "graphopt.search.tensat": "graphopt.search.rewriting.tensat",
    "graphopt.search.windowed": "graphopt.search.walks.windowed",
    "graphopt.search.xla_priority": "graphopt.search.fusion.xla_priority",
    "graphopt.sweep": "graphopt.run.sweep",
    "graphopt.training.schedule.Schedule": "graphopt.training.settings.TrainerSettings",
}


# Options that were values of another one, as files of older versions have them -> that one. Files hold all values.
FORMER: dict[str, dict[str, str]] = {
    "algo": {
        "laf_fresh": "laf",
        "laf_gain_random_start": "laf",
        "laf_no_priority": "laf",
        "laf_no_transform": "laf",
        "laf_random_start": "laf",
        "laf_signed": "laf",
        "laf_unguided_random_start": "laf_unguided",
        "scan_random_start": "scan",
    }
}


# Settings that came later -> what files that lack them mean.
ADDED: dict[str, dict[str, Any]] = {"graphopt.tasks.fusion.Fusion": {"numerics": None},
                                    "graphopt.datasets.rewrite_models.RewriteModels": {"apart": "models"},
                                    "graphopt.costs.inductor.Inductor": {"filter": None},
                                    "graphopt.tasks.sharding_task.Sharding": {"clock": "wall"},
                                    "graphopt.tasks.tiled_execution.Tiling": {"clock": "wall"},
                                    "graphopt.datasets.contests.tiling_contest.TilingContest": {"drawn": None},
                                    "graphopt.search.tiling.tile_walk.TileWalk": {
                                        "order": {"by": "passes", "power": 1.0, "patience": 1.0}}}  # fmt: skip


class StoredError(UserError):
    """A file says something of a configuration that means nothing in this installation; the message says what."""


def words(group: str, node: Node) -> dict[str, Any]:
    """What a file keeps of a node of a configuration (`judge`: of the group `cost`), nested nodes included."""
    target = str(node[TARGET])
    option = _option_of(group, target, str(node.get("name")))
    kept = {OPTION: option} if option is not None else {OPTION: None, CLASS: target}
    return {**kept, **{key: _inner(group, value) for key, value in node.items() if key != TARGET}}


def _inner(group: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return words(group, value) if TARGET in value else {key: _inner(group, v) for key, v in value.items()}
    return [_inner(group, v) for v in value] if isinstance(value, list | tuple) else value


def node_of(group: str, said: Any) -> dict[str, Any]:
    """The node that a file's words mean here, with the `_target_` of this installation's yaml file. Raises StoredError
    when they name no option, or hold anything but plain values."""
    if not isinstance(said, Mapping):
        raise StoredError(f"{group} is {_short(said)}, not an option with its values")
    target = _target(group, said)
    node: dict[str, Any] = {TARGET: target, **ADDED.get(target, {})}
    for key, value in said.items():
        if key not in RESERVED:
            node[str(key)] = None if key in OWN else _plain(group, value, f"{group}.{_short(key)}", key)
    return node


def _target(group: str, said: Mapping[str, Any]) -> str:
    known, option = _targets(group), said.get(OPTION)
    if isinstance(option, str):
        option = option if option in known else FORMER.get(group, {}).get(option, option)
    if isinstance(option, str) and option in known:
        return known[option]
    there = f"there are: {', '.join(known) or 'none'}"
    if isinstance(option, str):
        raise StoredError(f"{group}={_short(option)} is no option of this installation; {there}{_OWN_HINT}")
    target = said.get(CLASS) if OPTION in said else said.get(TARGET)
    if isinstance(target, str) and _moved(target) in known.values():
        return _moved(target)
    raise StoredError(
        f"{group} {_short(said.get('name', '?'))} is of the class {_short(target)}, which none of the options of this "
        f"installation is, and a file may not bring its own; {there}{_OWN_HINT}"
    )


def _moved(target: str) -> str:
    """Where a class is that an older version calls by this path."""
    module, _, name = target.rpartition(".")
    return MOVED.get(target) or (f"{MOVED[module]}.{name}" if module in MOVED else target)


def _plain(group: str, value: Any, where: str, key: Any = "") -> Any:
    """Values as JSON has them; nested nodes are of the same group, as in yaml files."""
    if str(key).startswith("_"):
        raise StoredError(f"{where} is no key that a file may set")
    if isinstance(value, Mapping):
        if OPTION in value or TARGET in value:
            return node_of(group, value)
        return {str(k): _plain(group, v, f"{where}.{_short(k)}", k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(group, v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, str) and "${" in value:
        raise StoredError(f"{where}={_short(value)} would be looked up elsewhere; a file may only hold plain values")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise StoredError(f"{where} is a {type(value).__name__}, not a plain value")


def _option_of(group: str, target: str, name: str) -> str | None:
    known = _targets(group)
    if known.get(name) == target:
        return name
    return next((option for option, own in known.items() if own == target), None)


def _targets(group: str) -> Mapping[str, str]:
    """Option -> the class that its yaml file names."""
    return _targets_in(tuple(registry.folders()), "cost" if group == "judge" else group)


@lru_cache(maxsize=64)
def _targets_in(folders: tuple[Path, ...], group: str) -> Mapping[str, str]:
    found = {}
    for name in registry.options(group):
        target = registry.option(group, name).get(TARGET)
        if target is not None:
            found[name] = str(target)
    if not found:
        raise ConfigError(f"there are no options of {group} in {' or '.join(map(str, folders))}")
    return found


def _short(value: Any) -> str:
    return repr(value)[:80] if not isinstance(value, str) else value[:80]
