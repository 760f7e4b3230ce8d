"""Small ONNX models that ask for more than any machine has, or that mean nothing. As a program: reads those of a folder
under a limit of memory and of time, and prints what became of each as JSON."""

import json
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
HUGE = 10**5  # squared: 10^10 elements
MEMORY, SECONDS = 3 << 30, 20  # beyond what the process takes anyway; of each model
node, value = helper.make_node, helper.make_tensor_value_info


def ints(name: str, *numbers: int) -> TensorProto:
    return helper.make_tensor(name, INT, [len(numbers)], numbers)


def scalar(name: str, number: float, kind: int = INT) -> TensorProto:
    return helper.make_tensor(name, kind, [], [number])


def model(nodes: list[NodeProto], weights: list[TensorProto], *, inputs: Any = None, outputs: Any = None,
          functions: list[FunctionProto] | None = None, opset: int = 17) -> ModelProto:  # fmt: skip
    x = [value("x", FLOAT, [2, 3])] if inputs is None else inputs
    graph = helper.make_graph(nodes, "g", x, outputs or [value("y", FLOAT, None)], weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("d", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    made: ModelProto = helper.make_model(graph, opset_imports=opsets, functions=functions or [], ir_version=8)
    return made


def constant(*nodes: NodeProto, weights: list[TensorProto]) -> ModelProto:
    """What is computed from constants, `big`, read by shape arithmetic and by arithmetic on the input."""
    after = [node("Shape", ["big"], ["size"]), node("ReduceMax", ["big"], ["top"], keepdims=0),
             node("Cast", ["top"], ["factor"], to=FLOAT), node("Unsqueeze", ["top", "zero"], ["to"]),
             node("Mul", ["x", "factor"], ["y"]), node("Expand", ["x", "size"], ["z"])]  # fmt: skip
    return model(
        [*nodes, *after], [*weights, ints("zero", 0)], outputs=[value("y", FLOAT, None), value("z", FLOAT, None)]
    )


def body(*nodes: NodeProto) -> GraphProto:
    """Of a loop: the condition stays, s becomes t."""
    return helper.make_graph([*nodes, node("Identity", ["go"], ["on"])], "body",
                             [value("i", INT, []), value("go", BOOL, []), value("s", INT, None)],
                             [value("on", BOOL, []), value("t", INT, None)])  # fmt: skip


def branch(*nodes: NodeProto) -> GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [value("r", INT, None)])


def doubling(count: int, kind: str) -> list[NodeProto]:
    """n0 -> n1 -> ...: each is the one before it twice."""
    return [node(kind, [f"n{k}", f"n{k}"], [f"n{k + 1}"], axis=0) for k in range(count)]


def bombs() -> dict[str, ModelProto]:
    """Constants of 10^10 elements and more, loops of 10^12 trips, functions of 2^60 nodes."""
    shape, one, ten = ints("shape", HUGE, HUGE), ints("one", 1), scalar("ten", 10**10)
    full = helper.make_tensor("f", INT, [1], [1])
    heavy = [node("Expand", ["one", "shape"], ["e"]), node("ReduceSum", ["e"], ["r"], keepdims=0)]
    loop = body(node("Add", ["s", "one"], ["t"]))
    grows = body(node("Concat", ["s", "s"], ["t"], axis=0))
    sizes = [node("Shape", ["x"], ["n0"]), *doubling(60, "Concat")]
    found = {
        "expand": constant(node("Expand", ["one", "shape"], ["big"]), weights=[one, shape]),
        "tile": constant(node("Tile", ["one", "long"], ["big"]), weights=[one, ints("long", 10**10)]),
        "filled": constant(node("ConstantOfShape", ["shape"], ["big"], value=full), weights=[shape]),
        "filled and reshaped": constant(
            node("ConstantOfShape", ["shape"], ["a"], value=full), node("Reshape", ["a", "flat"], ["big"]),
            weights=[shape, ints("flat", -1)]),
        "range": constant(node("Range", ["a", "ten", "b"], ["big"]), weights=[scalar("a", 0), ten, scalar("b", 1)]),
        "one hot": constant(node("OneHot", ["one", "ten", "two"], ["big"]), weights=[one, ten, ints("two", 0, 1)]),
        "pad": constant(node("Pad", ["one", "pads"], ["big"]), weights=[one, ints("pads", 0, 10**10)]),
        "resize": constant(node("Resize", ["n", "", "k"], ["big"], mode="nearest"), weights=[
            helper.make_tensor("n", INT, [1, 1, 1], [1]), helper.make_tensor("k", FLOAT, [3], [1.0, 1e5, 1e5])]),
        "concat doubles": constant(*doubling(40, "Concat"), node("Identity", ["n40"], ["big"]),
                                   weights=[ints("n0", *range(64))]),
        "gather grows": constant(
            *[node("Gather", [f"g{k}", "many"], [f"g{k + 1}"], axis=k) for k in range(6)],
            node("Identity", ["g6"], ["big"]),
            weights=[helper.make_tensor("g0", INT, [1] * 6, [1]), ints("many", *[0] * 200)]),
        "outer sums": constant(
            node("Add", ["p", "q"], ["big"]), weights=[helper.make_tensor("p", INT, [60000, 1], [0] * 60000),
                                                       helper.make_tensor("q", INT, [1, 60000], [0] * 60000)]),
        "random": constant(node("RandomUniform", [], ["u"], shape=[HUGE, HUGE]), node("Cast", ["u"], ["big"], to=INT),
                           weights=[]),
        "loop": constant(node("Loop", ["ten", "", "one"], ["big"], body=loop), weights=[ten, one]),
        "loop that doubles": constant(node("Loop", ["trips", "", "one"], ["big"], body=grows),
                                      weights=[scalar("trips", 50), one]),
        "if": constant(node("If", ["yes"], ["big"], then_branch=branch(*heavy), else_branch=branch(*heavy)),
                       weights=[scalar("yes", 1, BOOL), one, shape]),
        "sizes double": model([*sizes, node("ConstantOfShape", ["n60"], ["y"])], []),
        "sizes double within": model(
            [node("If", ["yes"], ["y"], then_branch=branch(*sizes, node("Size", ["n60"], ["r"])),
                  else_branch=branch(*sizes, node("Size", ["n60"], ["r"])))], [scalar("yes", 1, BOOL)]),
        "functions double": model([node("f0", ["x"], ["y"], domain="d")], [], functions=functions(60)),
    }  # fmt: skip
    return found


def functions(count: int, last: str = "Relu") -> list[FunctionProto]:
    """f0 calls f1 twice, and so on."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    made = []
    for k in range(count):
        inner = f"f{k + 1}" if k + 1 < count else last
        domain = "d" if inner.startswith("f") else ""
        nodes = [node(inner, ["a"], ["b"], domain=domain), node(inner, ["b"], ["c"], domain=domain)]
        made.append(helper.make_function("d", f"f{k}", ["a"], ["c"], nodes, opsets))
    return made


def typeless(kind: str, domain: str = "", **attributes: Any) -> ModelProto:
    """An operator whose input has no type: onnx 1.23's inference of its shape follows a null pointer."""
    return model(
        [node(kind, ["x"], ["y"], domain=domain, **attributes)], [], inputs=[ValueInfoProto(name="x")], opset=20
    )


def claimed(*dims: int, kind: int = FLOAT, payload: int = 0) -> TensorProto:
    """A weight w that says what it has not."""
    made = TensorProto(name="w", data_type=kind, raw_data=bytes(payload))
    made.dims.extend(dims)
    return made


def outside(place: str, **entries: int) -> TensorProto:
    """A weight w of [3, 4] in another file."""
    made = TensorProto(name="w", data_type=FLOAT, dims=[3, 4], data_location=TensorProto.EXTERNAL)
    for key, entry in {"location": place, **entries}.items():
        made.external_data.add(key=key, value=str(entry))
    return made


def nonsense() -> dict[str, ModelProto]:
    """Models that nothing can be made of: each is to be refused by at least one of the readers."""
    product, relu = node("MatMul", ["x", "w"], ["y"]), node("Relu", ["x"], ["y"])
    sound = claimed(3, 4, payload=48)
    twice = model([relu, node("Exp", ["x"], ["y"])], [])
    return {
        "no payload": model([product], [claimed(3, 10**12)]),
        "short payload": model([product], [claimed(3, 4, payload=20)]),
        "dims overflow": model([product], [claimed(3, 2**40, 2**40)]),
        "dims overflow to nothing": model([product], [claimed(2**32, 2**32)]),
        "negative dims": model([product], [claimed(3, -4, payload=48)]),
        "many dims": model([product], [claimed(*[1] * 1000, payload=4)]),
        "element type": model([product], [claimed(3, 4, kind=999, payload=48)]),
        "no element type": model([product], [claimed(3, 4, kind=0, payload=48)]),
        "wide inputs": model([relu], [], inputs=[value("x", FLOAT, [2**40, 2**40])]),
        "long inputs": model([node("Exp", ["x"], ["y"])], [], inputs=[value("x", FLOAT, [10**12])]),
        "grows by steps": model(
            [node("Concat", [f"n{k}", f"n{k}"], [f"n{k + 1}"], axis=0) for k in range(70)]
            + [node("Relu", ["n70"], ["y"])], [], inputs=[value("n0", FLOAT, [2, 3])]),
        "operator set 0": model([relu], [], opset=0),
        "operator set -1": model([relu], [], opset=-1),
        "operator set 10^9": model([relu], [], opset=10**9),
        "made twice": twice,
        "weight twice": model([product], [sound, sound]),
        "input twice": model([relu], [], inputs=[value("x", FLOAT, [2])] * 2),
        "result is a weight": model([node("Relu", ["x"], ["w"]), product], [sound]),
        "function of itself": model([node("f0", ["x"], ["y"], domain="d")], [], functions=functions(1, "f0")),
        "outside the folder": model([product], [outside("../secret.bin")]),
        "absolute path": model([product], [outside("/etc/passwd")]),
        "device": model([product], [outside("/dev/zero")]),
        "pipe": model([product], [outside("pipe")]),
        "beyond the file": model([product], [outside("short.bin", length=48)]),
        "whole file": model([product], [outside("short.bin", length=4)]),
        "negative offset": model([product], [outside("short.bin", offset=-8)]),
        "cycle": model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Exp", ["b"], ["y"])], []),
        "ugly names": model([node("Add", ["x", "\x1b[2J\n" + 5000 * "ghost"], ["y"])], []),
        "nothing to measure": model([node("Shape", [], ["y"]), node("Constant", [], []), node("Relu", ["y"], [])], []),
        "nothing makes it": model([node("Add", ["x", "ghost"], ["y"])], []),
        "label without a type": typeless("LabelEncoder", "ai.onnx.ml", keys_int64s=[1], values_floats=[1.0]),
        "dictionary without a type": typeless("DictVectorizer", "ai.onnx.ml", int64_vocabulary=[1]),
        "text without a type": typeless("RegexFullMatch", pattern="a"),
        "crash within a branch": model([node("If", ["yes"], ["y"], then_branch=branch(
            node("RegexFullMatch", ["z"], ["r"], pattern="a")), else_branch=branch(node("Shape", ["x"], ["r"])))],
            [scalar("yes", 1, BOOL)], inputs=[value("x", FLOAT, [2]), ValueInfoProto(name="z")], opset=20),
        "shape of 2^62 sizes": model([node("Expand", ["x", "s"], ["y"]), node("Relu", ["y"], ["z"])], [], inputs=[
            value("x", FLOAT, [2]), value("s", INT, [2**62])], outputs=[value("z", FLOAT, None)]),
    }  # fmt: skip


def nested(depth: int) -> bytes:
    """The bytes of a model with so many graphs within each other: too deep to be built by the library itself."""
    inner = b""
    for _ in range(depth):
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # graph of an attribute, attribute of a node, node of a graph
            inner = tag + _varint(len(inner)) + inner
    start = model([], []).SerializeToString()
    return start + b"\x3a" + _varint(len(inner)) + inner


def not_text() -> bytes:
    """The bytes of a model with an operator whose name is no UTF-8."""
    return model([node("Relu", ["x"], ["y"])], []).SerializeToString().replace(b"Relu", b"\xcdelu")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def outcome(read: Any, path: Path) -> str:
    """What a reader makes of a file, in a word and a sentence."""
    from graphopt.core.graph import GraphError

    resource.setrlimit(resource.RLIMIT_CPU, (_spent() + SECONDS, resource.RLIM_INFINITY))
    try:
        read(path)
    except GraphError as error:
        return f"refused: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def _spent() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int(used.ru_utime + used.ru_stime) + 1


def main(folder: Path) -> None:
    import signal

    from graphopt.graphs.readers.onnx.reader import read_onnx
    from graphopt.rewrite.io.onnx_import import import_onnx
    from graphopt.rewrite.ir.execution import Executor  # noqa: F401  (torch is part of what the process takes anyway)

    def stop(*_: Any) -> None:
        raise TimeoutError(f"{SECONDS} s")

    warnings.simplefilter("ignore")
    np.seterr(all="raise")
    signal.signal(signal.SIGXCPU, stop)
    size = int(next(s for s in Path("/proc/self/status").read_text().splitlines() if "VmSize" in s).split()[1])
    resource.setrlimit(resource.RLIMIT_AS, ((size << 10) + MEMORY, resource.RLIM_INFINITY))
    for path in sorted(folder.glob("*.onnx")):
        found = {"graph": outcome(read_onnx, path), "program": outcome(import_onnx, path)}
        print(json.dumps({path.stem: found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
