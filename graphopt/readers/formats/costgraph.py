"""TensorFlow CostGraphDef in protobuf text form, the format of REGAL's synthetic set.

A compute cost of 1 is 1 FLOP; sizes are bytes. Control inputs become tensors of 0 bytes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.errors import Unreadable
from graphopt.utils.limits import MIB, read_bytes

FILE_BYTES, DEPTH = 64 * MIB, 64
Message = dict[str, list[Any]]
_TOKEN = re.compile(r'\s+|#[^\n]*|(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[{}:;,])|(?P<word>[^\s{}:;,"#]+)')


def read_costgraph(path: str | Path) -> Graph:
    """Reads `node { id name input_info output_info control_input compute_cost }`; every output_info is a tensor."""
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no file {path}; give the path of a CostGraphDef text")
    try:
        nodes = {
            int(_last(node, "id", 0)): node
            for node in parse_text(read_bytes(path, FILE_BYTES).decode()).get("node", [])
        }
        return _build(path.stem, nodes)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error
    except (Unreadable, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        reason = f"{path} is not a CostGraphDef text ({error})"
        raise GraphError(f"{reason}; it should hold 'node {{ ... }}' entries") from error


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


def _build(name: str, nodes: dict[int, Message]) -> Graph:
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
