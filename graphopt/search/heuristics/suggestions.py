"""What heuristics suggest for the kernels of any plan, one after the other, the more promising ones first.

Of HEFT there is one for each factor by which it overrates transfers, since it knows nothing of queues on links.
"""

from collections.abc import Iterator

from graphopt.search.heuristics.expert import by_layers
from graphopt.search.heuristics.rules import (
    HEURISTICS,
    Device,
    SchedulingInstance,
    Suggestion,
    heft_schedule,
    order_bottom_level,
    order_depth_first,
    order_memory_greedy,
    order_reverse_bottom_level,
    order_topological,
)

CAUTIONS = (16.0, 8.0, 4.0, 32.0, 2.0, 1.0, 12.0, 6.0, 3.0, 64.0, 0.5)  # HEFT with transfers so many times as long
_FROM_CAUTIONS = ("heft", "heft_cautious")
_ORDERS = (order_bottom_level, order_topological, order_reverse_bottom_level, order_depth_first, order_memory_greedy)


def placements(instance: SchedulingInstance) -> Iterator[Suggestion]:
    """Devices and an order: HEFT by cautions, then the other heuristics, and what practitioners do by hand."""
    for caution in CAUTIONS:
        schedule = heft_schedule(instance, caution)
        yield Suggestion(schedule.device, schedule.urgency)
    for name, heuristic in HEURISTICS.items():
        if name not in _FROM_CAUTIONS:
            yield heuristic(instance)
    expert = by_layers(instance).astype("int16")
    yield Suggestion(expert, order_bottom_level(instance, expert))


def orders(instance: SchedulingInstance, device: Device) -> Iterator[Suggestion]:
    """Orders of the kernels on their devices [N]; HEFT's ranks last."""
    for order in _ORDERS:
        yield Suggestion(device, order(instance, device))
    yield Suggestion(device, heft_schedule(instance, 1.0).urgency)
