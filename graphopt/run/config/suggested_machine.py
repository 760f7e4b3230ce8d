"""A machine whose yaml leaves fields of devices open (null) has them from the data set's files.

They are filled in before the cell is named, so that rows and stored answers name the machine that they were priced on.
"""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.core.machine import Machine
from graphopt.graphs.dataset import Dataset
from graphopt.run.config.construct import Node, construct


def with_suggested_machine(config: Any) -> Any:
    """The composed configuration with open fields of the machine's devices filled in. Fields that cannot be filled stay
    open; `make_machine` then says so, where it becomes a row."""
    devices = config.get("machine", {}).get("devices", {})
    if not isinstance(devices, Mapping) or not any(None in device.values() for device in devices.values()):
        return config
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    with suppress(UserError, GraphError):
        dataset: Dataset = construct(plain["dataset"], "dataset", {"seed": plain["seed"]})
        suggested = dataset.suggested_devices()
        if len(suggested) == 1:
            plain["machine"]["devices"] = filled(plain["machine"]["devices"], suggested[0])
    return OmegaConf.create(plain)


def filled(devices: Mapping[str, Node], suggested: Mapping[str, Mapping[str, float]]) -> dict[str, Node]:
    """Devices with open fields filled by the suggestion for their kind; devices without suggestion are left out."""
    facts = {name: suggested.get(str(device.get("kind")), {}) for name, device in devices.items()}
    closed = {
        name: {key: facts[name].get(key) if value is None else value for key, value in device.items()}
        for name, device in devices.items()
    }
    return {name: device for name, device in closed.items() if device.get("count") != 0}


def warn_of_other_machine(dataset: Dataset, machine: Machine) -> None:
    """Warns where a file was made for other counts or sizes of the machine's kinds of devices."""
    suggestions: list[dict[str, dict[str, float]]] = []
    with suppress(UserError, GraphError):  # errors of a file are raised when its graph is read
        suggestions = dataset.suggested_devices()
    for suggested in suggestions:
        for kind, facts in suggested.items():
            own = [device for device in machine.devices if device.kind == kind]
            sizes = {device.capacity for device in own}
            other = [f"{facts['count']:.0f} of them"] if len(own) != facts["count"] else []
            other += [f"{facts['capacity']:.0f} bytes each"] if sizes - {facts.get("capacity", *sizes)} else []
            if any(device.kind in suggested for device in machine.devices) and other:
                warnings.warn(
                    f"machine={machine.name} has {len(own)} devices of kind {kind}, but a file of "
                    f"dataset={dataset.name} was made for {', '.join(other)}; machine=accelerators is what it asks for",
                    stacklevel=2,
                )
