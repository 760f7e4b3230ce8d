"""Independent oracle of sharding: costs and memory of strategies, as plain sums of Python integers by the contest's
rules. It shares no code with the cost model, and is not fast."""

from collections import defaultdict
from collections.abc import Sequence

from graphopt.core.auto_sharding.strategies import NO_LIMIT, StrategyTables, price
from graphopt.core.plan import Plans


def slow_cost(tables: StrategyTables, choice: Sequence[int]) -> int:
    """The sum of all nodes' and all edges' costs, exact."""
    cost = sum(int(tables.cost[int(tables.ptr[n]) + s]) for n, s in enumerate(choice))
    for e in range(tables.num_edges):
        nodes = tables.edge_node[tables.edge_ptr[e] : tables.edge_ptr[e + 1]].tolist()
        place = 0
        for n in nodes:
            place = place * int(tables.ptr[n + 1] - tables.ptr[n]) + choice[n]
        cost += int(tables.table[int(tables.table_ptr[e]) + place])
    return cost


def slow_peak(tables: StrategyTables, choice: Sequence[int]) -> int:
    """The most that is used at any time; a node is there from its start until before its end."""
    change: dict[int, int] = defaultdict(int)
    for n, s in enumerate(choice):
        start, end = int(tables.start[n]), int(tables.end[n])
        if start < end:
            used = int(tables.usage[int(tables.ptr[n]) + s])
            change[start] += used
            change[end] -= used
    peak = now = 0
    for time in sorted(change):
        now += change[time]
        peak = max(peak, now)
    return peak


def check_strategies(plan: Plans) -> list[str]:
    """Errors in the strategies of a plan (a batch of one), and in their price."""
    tables = plan.graph.program
    if not isinstance(tables, StrategyTables) or "strategy" not in plan.choices:
        return []
    choice = plan.choices["strategy"][0].tolist()
    names = plan.graph.op_names
    pairs = enumerate(zip(choice, tables.counts.tolist(), strict=True))
    wrong = [f"op {names[n]} takes strategy {s} of {count}" for n, (s, count) in pairs if not 0 <= s < count]
    if wrong:
        return wrong
    cost, over = price(tables, plan.choices["strategy"][0].astype("int64"))
    exact, peak = slow_cost(tables, choice), slow_peak(tables, choice)
    excess = max(0, peak - tables.limit) if tables.limit < NO_LIMIT else 0
    if abs(cost - exact) > 1e-12 * abs(exact):
        wrong.append(f"the strategies cost {exact}, not {cost}")
    if over != excess:
        wrong.append(f"the strategies use {excess} units too much, not {over}")
    return wrong
