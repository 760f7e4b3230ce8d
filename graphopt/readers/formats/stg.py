"""Standard Task Graph files (Kasahara laboratory): task, processing time, predecessors; no communication.

A processing time of 1 is 1 FLOP, hence 1 s on an ideal device. Results are empty. The dummy source and sink stay.
"""

from pathlib import Path

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.errors import Unreadable
from graphopt.utils.limits import MIB, read_bytes

FILE_BYTES = 64 * MIB


def read_stg(path: str | Path) -> Graph:
    """Reads the number of tasks without the two dummies, then a line `task time count predecessors...` per task."""
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of a Standard Task Graph file")
    try:
        tasks = _tasks(read_bytes(path, FILE_BYTES).decode())
    except (Unreadable, ValueError, IndexError, OverflowError) as error:
        reason = f"{path} is not a Standard Task Graph file ({error})"
        raise GraphError(f"{reason}; its lines should be: task time count predecessors") from error
    builder = GraphBuilder(path.stem, "stg")
    results = {task: builder.tensor((0,), "uint8") for task in tasks}
    for task, (time, before) in tasks.items():
        missing = [p for p in before if p not in tasks]
        if missing:
            raise GraphError(f"{path}: task {task} names predecessor {missing[0]}, which is not in the file")
        builder.op("opaque", [results[p] for p in before], [results[task]], flops=time, name=f"task_{task}")
    read = {p for _, before in tasks.values() for p in before}
    for task in tasks.keys() - read:
        builder.output(results[task])
    return builder.build()


def _tasks(text: str) -> dict[int, tuple[float, list[int]]]:
    """Task -> (time, predecessors). Raises ValueError where the numbers do not add up."""
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    count = int(lines[0][0])
    tasks: dict[int, tuple[float, list[int]]] = {}
    for fields in lines[1:]:
        task, time, before = int(fields[0]), float(fields[1]), [int(f) for f in fields[3:]]
        if len(before) != int(fields[2]):
            raise ValueError(f"task {task} announces {fields[2]} predecessors and names {len(before)}")
        tasks[task] = (time, before)
    if len(tasks) not in (count, count + 2):
        raise ValueError(f"{count} tasks announced, {len(tasks)} found")
    return tasks
