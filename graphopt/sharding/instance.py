"""From a graph to the tables of its instance, which data sets give with it. They are other people's data: studies keep
neither them nor their graphs, and a replay reads both again."""

from graphopt.core.auto_sharding.strategies import StrategyTables
from graphopt.core.graph import Graph, GraphError


def tables_of(graph: Graph) -> StrategyTables:
    """Raises GraphError where the graph comes without them."""
    if not isinstance(graph.program, StrategyTables):
        raise GraphError(f"graph {graph.name!r} has no tables of strategies; read it with dataset=sharding")
    return graph.program
