"""Task graphs of others, which bring their own costs: ops with times, tensors with sizes, no shapes.

| name | format |
|---|---|
| `*.stg` | Standard Task Graph (Kasahara laboratory) |
| `*.graph.json` | profiled graph: microseconds of ops, bytes of results |
| `*.memory.json` | tensor lifetimes, for the order of least memory |
| `*.pbtxt` | TensorFlow CostGraphDef in protobuf text form, the format of REGAL's synthetic set |
| other `*.json` | layer and operator graphs of msr-fiddle/dnn-partitioning |

One FLOP is a second on an ideal device.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.utils.limits import JSON_BYTES, MIB, read_bytes, read_json

TEXT_BYTES = 64 * MIB  # of a file of text
_BAD = (Unreadable, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)


@contextmanager
def _reading(path: Path, what: str, needs: str) -> Iterator[None]:
    """Raises GraphError, in one sentence, where the file is not of its format."""
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of {what}")
    try:
        yield
    except GraphError:
        raise
    except _BAD as error:
        raise GraphError(f"{path} is not {what} ({error!r}); it needs {needs}") from error


# --- Standard Task Graphs: task, processing time, predecessors; no communication. The dummy source and sink stay.


def read_stg(path: str | Path) -> Graph:
    """Reads the number of tasks without the two dummies, then a line `task time count predecessors...` per task."""
    path = Path(path)
    with _reading(path, "a Standard Task Graph file", "lines: task time count predecessors"):
        tasks = _tasks(read_bytes(path, TEXT_BYTES).decode())
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


# --- Profiled graphs: op names, measured microseconds, result bytes, and the ops that each op reads.

_FIELDS = ("names", "cost_us", "out_bytes", "inputs")


def read_profiled(path: str | Path) -> Graph:
    """Reads {"names": [N], "cost_us": [N], "out_bytes": [N], "inputs": [N] lists of op numbers}.

    Every op makes one tensor; those that nobody reads are graph outputs.
    """
    path = Path(path)
    with _reading(path, "a profiled graph", f"lists {', '.join(_FIELDS)}"):
        data = read_json(path, JSON_BYTES)
        names, costs, sizes, inputs = (list(data[f]) for f in _FIELDS)
        if not len(names) == len(costs) == len(sizes) == len(inputs):
            raise ValueError("its lists differ in length")
        builder = GraphBuilder(name := path.stem.removesuffix(".graph"), "profiled")
        results = [builder.tensor((int(size),), "uint8") for size in sizes]
        for op, before in enumerate(inputs):
            if any(not 0 <= p < len(names) for p in before):
                raise GraphError(f"graph {name!r}: op {names[op]!r} reads an op that is not in the file")
            builder.op("opaque", [results[p] for p in before], [results[op]], flops=costs[op] * 1e-6, name=names[op])
        for op in set(range(len(names))) - {p for before in inputs for p in before}:
            builder.output(results[op])
        return builder.build()


# --- Tensor lifetimes: every op takes a second.


def read_lifetimes(path: str | Path) -> Graph:
    """Reads {"ops": [names], "tensors": [{"size": bytes, "producer": op, "consumers": [ops], "keep": bool}]}, ops by
    their number. `producer` null: there from the start. `keep`: a graph output, which stays in memory."""
    path = Path(path)
    needs = '"ops", and "tensors" with size, producer, consumers, keep'
    with _reading(path, "a file of ops and tensors", needs):
        data = read_json(path, JSON_BYTES)
        ops, name = data["ops"], path.name.removesuffix(".json").removesuffix(".memory")
        builder = GraphBuilder(name, "memory")
        reads: list[list[int]] = [[] for _ in ops]
        makes: list[list[int]] = [[] for _ in ops]
        for fields in data["tensors"]:
            tensor = builder.tensor((int(fields["size"]),), "uint8")
            for op in fields["consumers"]:
                reads[_known(op, ops, name)].append(tensor)
            if fields["producer"] is not None:
                makes[_known(fields["producer"], ops, name)].append(tensor)
            if fields["keep"]:
                builder.output(tensor)
        repeated = len(set(ops)) < len(ops)
        for i, op in enumerate(ops):
            builder.op("opaque", reads[i], makes[i], flops=1.0, name=f"{op}_{i}" if repeated else op)
        return builder.build()


def _known(op: int, ops: list[str], name: str) -> int:
    if not 0 <= op < len(ops):
        raise GraphError(f"graph {name!r}: a tensor names op {op}, and there are {len(ops)}")
    return op


# --- CostGraphDef: sizes are bytes. Control inputs become tensors of 0 bytes.

DEPTH = 64
Message = dict[str, list[Any]]
_TOKEN = re.compile(r'\s+|#[^\n]*|(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[{}:;,])|(?P<word>[^\s{}:;,"#]+)')


def read_costgraph(path: str | Path) -> Graph:
    """Reads `node { id name input_info output_info control_input compute_cost }`; every output_info is a tensor."""
    path = Path(path)
    with _reading(path, "a CostGraphDef text", "entries 'node { ... }'"):
        fields = parse_text(read_bytes(path, TEXT_BYTES).decode())
        nodes = {int(_last(node, "id", 0)): node for node in fields.get("node", [])}
        return _of_messages(path.stem, nodes)


def parse_text(text: str) -> Message:
    """Protobuf text as nested dictionaries; every field is a list, in order. Raises ValueError on broken syntax."""
    return _message(_tokens(text), 0)


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"unreadable at character {position}")
        position = match.end()
        if match.lastgroup is not None:
            yield match.group()


def _message(tokens: Iterator[str], depth: int) -> Message:
    if depth > DEPTH:
        raise ValueError(f"more than {DEPTH} braces are open at once")
    fields: Message = {}
    for name in tokens:
        if name == "}" and depth:
            return fields
        if name in ",;":
            continue
        mark = next(tokens, "")
        value = next(tokens, "") if mark == ":" else mark
        if name in "{}:" or value in ("", "}", ":"):
            raise ValueError(f"field {name!r} has no value")
        fields.setdefault(name, []).append(_message(tokens, depth + 1) if value == "{" else value.strip('"'))
    if depth:
        raise ValueError("a brace is not closed")
    return fields


def _last(message: Message, field: str, default: Any) -> Any:
    """The last value of a field, as protobuf reads a single-valued one."""
    values = message.get(field)
    return values[-1] if values else default


def _of_messages(name: str, nodes: dict[int, Message]) -> Graph:
    builder = GraphBuilder(name, "costgraph")
    results = {i: [_result(builder, info) for info in node.get("output_info", [])] for i, node in nodes.items()}
    senders = {int(c) for node in nodes.values() for c in node.get("control_input", [])}
    signals = {i: builder.tensor((0,), "uint8") for i in nodes if i in senders}
    read: set[int] = set()
    for i, node in nodes.items():
        inputs = _inputs(node, results, signals)
        made = results[i] + ([signals[i]] if i in signals else [])
        cost = float(_last(node, "compute_cost", 0))
        builder.op("opaque", inputs, made, flops=cost, name=str(_last(node, "name", f"node_{i}")))
        read.update(inputs)
    for tensor in {t for made in results.values() for t in made} - read:
        builder.output(tensor)
    return builder.build()


def _result(builder: GraphBuilder, info: Message) -> int:
    """A tensor; a size that is not known is negative in the format and counts nothing."""
    return builder.tensor((max(int(_last(info, "size", 0)), 0),), "uint8")


def _inputs(node: Message, results: dict[int, list[int]], signals: dict[int, int]) -> list[int]:
    inputs = []
    for info in node.get("input_info", []):
        source, port = int(_last(info, "preceding_node", 0)), int(_last(info, "preceding_port", 0))
        if source not in results or not 0 <= port < len(results[source]):
            raise GraphError(f"a node reads output {port} of node {source}, which is not in the file")
        inputs.append(results[source][port])
    for source in map(int, node.get("control_input", [])):
        if source not in signals:
            raise GraphError(f"a node waits for node {source}, which is not in the file")
        inputs.append(signals[source])
    return inputs


# --- Layer and operator graphs: ops measured on a CPU and an accelerator.
#
# Nodes have times in ms on both kinds of device, bytes that they keep, and optionally a colour: those of one colour
# share a device. Edges have the ms that a transfer of their source's result takes; at the bandwidth `BYTES_PER_MS` of
# the set the result has so many bytes. A file also says for which machine it was made, `machine=accelerators`.

BYTES_PER_MS = 2**31
MOST_DEVICES = 60  # of a machine that a file asks for


def is_layer_graph(data: Any) -> bool:
    """Whether JSON holds nodes and edges as layer graphs have them."""
    try:
        return bool("fpgaLatency" in data["nodes"][0] and isinstance(data["edges"], list))
    except (KeyError, TypeError, IndexError):
        return False


def read_layer_graph(path: str | Path) -> Graph:
    """Reads {"nodes": [{id, cpuLatency, fpgaLatency, size}], "edges": [{sourceId, destId, cost}]}.

    Of nodes also colorClass (null or absent: alone), supportedOnFpga (0: takes for ever there) and isBackwardNode,
    which becomes the attribute `backward`. Ids are numbers or strings. Memory that a node keeps becomes a weight. One
    FLOP is a second on the accelerator (on the CPU where the former cannot).
    """
    path = Path(path)
    data = _load(path)
    with _reading_layers(path):
        return _of_layers(path.stem.removeprefix("LayerGraphs_"), data["nodes"], data["edges"])


def read_devices(path: str | Path) -> dict[str, dict[str, float]]:
    """Kind of device -> `count`, and `capacity` in bytes of an accelerator, for which the file was made; as far as it
    says so."""
    data, facts = _load(Path(path)), dict[str, dict[str, float]]()
    for kind, key in (("accelerator", "maxFPGAs"), ("cpu", "maxCPUs")):
        count = data.get(key)
        if count is None:
            continue
        if not isinstance(count, int | float) or count != int(count) or not 0 <= count <= MOST_DEVICES:
            raise GraphError(f"{path}: {key} must be a whole number from 0 to {MOST_DEVICES}, not {count!r}")
        facts[kind] = {"count": int(count)}
    capacity = data.get("maxSizePerFPGA")
    if capacity is not None and "accelerator" in facts:
        if not isinstance(capacity, int | float) or not capacity > 0:
            raise GraphError(f"{path}: maxSizePerFPGA must be a positive number of bytes, not {capacity!r}")
        facts["accelerator"]["capacity"] = float(capacity)
    return facts


def _reading_layers(path: Path) -> Any:
    return _reading(path, "a layer graph", "nodes and edges with costs")


def _load(path: Path) -> dict[str, Any]:
    with _reading_layers(path):
        return dict(read_json(path, JSON_BYTES))


def _of_layers(name: str, nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> Graph:
    builder = GraphBuilder(name, "layers")
    travel = {str(node["id"]): 0.0 for node in nodes}
    if len(travel) < len(nodes):
        raise GraphError(f"graph {name!r}: two nodes share an id")
    reads: dict[str, list[str]] = {i: [] for i in travel}
    for edge in edges:
        source, target = str(edge["sourceId"]), str(edge["destId"])
        if source not in travel or target not in travel:
            raise GraphError(f"graph {name!r}: the edge {source} -> {target} has an end that is no node")
        travel[source] = max(travel[source], float(edge["cost"]))
        reads[target].append(source)
    results = {i: builder.tensor((round(ms * BYTES_PER_MS),), "uint8") for i, ms in travel.items()}
    for node in nodes:
        kept = builder.tensor((round(node["size"]),), "uint8", weight=True)
        seconds, colour, op = _seconds(name, node), node.get("colorClass"), str(node["id"])
        builder.op(
            "opaque", [*(results[i] for i in reads[op]), kept], [results[op]], name=op,
            flops=seconds["accelerator" if isfinite(seconds["accelerator"]) else "cpu"], seconds=seconds,
            together=None if colour is None else str(colour),
            attributes={"backward": True} if node.get("isBackwardNode") else None,
        )  # fmt: skip
    read = {source for sources in reads.values() for source in sources}
    for i in travel.keys() - read:
        builder.output(results[i])
    return builder.build()


def _seconds(name: str, node: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by kind of device; inf where a node is not supported."""
    able = bool(node.get("supportedOnFpga", True))
    cpu, accelerator = float(node["cpuLatency"]), float(node["fpgaLatency"]) if able else float("inf")
    if not (isfinite(cpu) or isfinite(accelerator)):
        raise GraphError(f"graph {name!r}: node {node['id']} runs nowhere; give it a time on some device")
    return {"cpu": cpu * 1e-3, "accelerator": accelerator * 1e-3}
