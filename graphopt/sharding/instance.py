"""From a graph to the tables of its instance. Graphs that come from stored studies have none with them: the tables are
other people's data, which no study copies. They are read again from the user's folder."""

import os
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

from graphopt.core.auto_sharding.strategies import StrategyTables
from graphopt.core.graph import Graph, GraphError
from graphopt.readers.formats.iopddl import read_tables, shape_of

FOLDER = "GRAPHOPT_SHARDING"  # environment: the folder of instances that graphs of stored studies are of
_TABLES: "WeakKeyDictionary[Graph, StrategyTables]" = WeakKeyDictionary()
_SEEN: "WeakValueDictionary[tuple[int, ...], StrategyTables]" = WeakValueDictionary()  # by what stands for them


def tables_of(graph: Graph) -> StrategyTables:
    """Raises GraphError where they are not at hand."""
    if isinstance(graph.program, StrategyTables):
        _SEEN[graph.tensor_shape(0)] = graph.program
        return graph.program
    if graph not in _TABLES:
        _TABLES[graph] = _found(graph)
    return _TABLES[graph]


def _found(graph: Graph) -> StrategyTables:
    folder = os.environ.get(FOLDER)
    if graph.num_tensors and graph.tensor_shape(0) in _SEEN:
        return _SEEN[graph.tensor_shape(0)]
    if graph.num_tensors and folder is not None:
        for file in sorted(Path(folder).glob("*.json*")):
            if file.name.removesuffix(".gz").removesuffix(".json") == graph.name:
                tables = read_tables(file)
                if graph.tensor_shape(0) == shape_of(tables):
                    return tables
    raise GraphError(f"graph {graph.name!r} has no tables of strategies; read it with dataset=sharding, or for stored "
                     f"answers name the folder of its file in ${FOLDER}")  # fmt: skip
