"""Why a plan does not fit its machine, in a sentence: which device lacks how much memory, and what to do."""

from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel


def lack_of_memory(plan: Plans, cost: CostModel, machine: Machine) -> str:
    """The sentence for a plan (a batch of one) whose price is infinite; empty where the cost model knows no memory."""
    held = cost.peak_bytes(plan)
    if held is None:
        return ""
    over = [
        f"{device.name} needs {amount(need)}, {amount(need - device.capacity)} more than its {amount(device.capacity)}"
        for device, need in zip(machine.devices, held.tolist(), strict=True)
        if need > device.capacity
    ]
    if not over:
        return ""
    used = {int(d) for d, inline in zip(plan.device[0], plan.inline[0]) if not inline}
    advice = "Give more devices"
    if machine.num_devices > 1 and len(used) == 1:
        advice = f"Spread the ops over the {machine.num_devices} devices (task=placement or task=joint), or give more"
    return (
        f"no plan found fits the devices' memory: {'; '.join(over)}. {advice} "
        "(machine.devices.NAME.count=...) or larger ones (machine.devices.NAME.capacity=BYTES)"
    )


def amount(size: float) -> str:
    """Bytes in words: 4.95 MB. Decimal units, three digits."""
    scale = 0
    while scale < len(_UNITS) - 1 and float(f"{abs(size):.3g}") >= 1000:
        size, scale = size / 1000, scale + 1
    return f"{size:.3g} {_UNITS[scale]}"


_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
