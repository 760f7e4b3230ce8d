"""Workflows of WfCommons (WfFormat 1.5 and 1.6, github.com/wfcommons/WfFormat): measured seconds, files with bytes.

A task is an op that takes its measured seconds on an ideal device. A file is a tensor: of the first task that writes
it, or an input. A parent with which a task shares no file comes before it by a tensor of no bytes. Cores, memory and
machines of the execution are not read.
"""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.utils.limits import JSON_BYTES, read_json

MOST_BYTES = 2**60  # of a file


def is_workflow(data: Any) -> bool:
    """Whether JSON holds a workflow's specification."""
    try:
        return isinstance(data["workflow"]["specification"]["tasks"], list)
    except (KeyError, TypeError, IndexError):
        return False


def read_workflow(path: str | Path) -> Graph:
    """The graph of a workflow that has been executed. Raises GraphError, in one sentence, on a file that is none."""
    path = Path(path)
    try:
        workflow = read_json(path, JSON_BYTES)["workflow"]
        tasks = {str(task["id"]): task for task in workflow["specification"]["tasks"]}
        if len(tasks) != len(workflow["specification"]["tasks"]):
            raise GraphError(f"{path}: two tasks have the same id")
        sizes = {str(file["id"]): file["sizeInBytes"] for file in workflow["specification"].get("files", [])}
        seconds = {str(run["id"]): run["runtimeInSeconds"] for run in workflow.get("execution", {}).get("tasks", [])}
        return _graph(path, tasks, sizes, seconds)
    except (Unreadable, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise GraphError(f"{path} is no workflow of WfCommons ({error!r}); it needs workflow.specification and "
                         "workflow.execution, as WfFormat 1.5 has them") from error  # fmt: skip


def _graph(path: Path, tasks: Mapping[str, Any], sizes: Mapping[str, Any], seconds: Mapping[str, Any]) -> Graph:
    builder = GraphBuilder(path.name.removesuffix(".gz").removesuffix(".json"), "workflow")
    writer: dict[str, str] = {}
    for name, task in tasks.items():
        for file in task.get("outputFiles", []):
            writer.setdefault(str(file), name)
    used = dict.fromkeys(str(f) for t in tasks.values() for f in (*t.get("inputFiles", []), *t.get("outputFiles", [])))
    tensors = {file: builder.tensor((_bytes(path, file, sizes),), "uint8") for file in used}
    signals = {name: builder.tensor((0,), "uint8") for name in tasks}
    read = set[int]()
    for name, task in tasks.items():
        inputs = [str(file) for file in task.get("inputFiles", []) if writer.get(str(file)) != name]
        served = {writer.get(file) for file in inputs}
        parents = dict.fromkeys(str(parent) for parent in task.get("parents", []))
        lost = next((parent for parent in parents if parent not in tasks), None)
        if lost is not None:
            raise GraphError(f"{path}: task {name[:80]} names parent {lost[:80]}, which is not in the file")
        given = [tensors[file] for file in inputs] + [signals[parent] for parent in parents if parent not in served]
        made = [tensors[file] for file in map(str, task.get("outputFiles", [])) if writer[file] == name]
        read.update(given)
        builder.op("opaque", list(dict.fromkeys(given)), [*dict.fromkeys(made), signals[name]],
                   flops=_seconds(path, name, seconds), name=name)  # fmt: skip
    for result in [*(tensors[file] for file in writer), *signals.values()]:
        if result not in read:
            builder.output(result)
    return builder.build()


def _bytes(path: Path, file: str, sizes: Mapping[str, Any]) -> int:
    size = sizes.get(file)
    if type(size) is not int or not 0 <= size < MOST_BYTES:
        raise GraphError(f"{path}: file {file[:80]} has no size in bytes")
    return size


def _seconds(path: Path, name: str, seconds: Mapping[str, Any]) -> float:
    found = seconds.get(name)
    if not isinstance(found, int | float) or not isfinite(found) or found < 0:
        raise GraphError(f"{path}: task {name[:80]} has no measured seconds in workflow.execution")
    return float(found)
