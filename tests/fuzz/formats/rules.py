"""Rules: our text form, TASO's protobuf, Tensat's text."""

from pathlib import Path

from graphopt.rewrite import verify
from graphopt.rewrite.generation import foreign
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.symmetry import canonical

from ..judge import Format, Wrong
from ..mutate import Draw, damaged_bytes, damaged_text

TENSAT = """(ewadd (matmul 0 ?a ?c) (matmul 0 ?b ?c))=>(matmul 0 (ewadd ?a ?b) ?c)
(conv2d 1 1 0 0 ?x (ewadd ?y ?z))=>(ewadd (conv2d 1 1 0 0 ?x ?y) (conv2d 1 1 0 0 ?x ?z))
(split_0 (split 1 (matmul 0 ?x (concat 1 2 ?y ?z))))=>(matmul 0 ?x ?y)
(split_1 (split 1 (matmul 0 ?x (concat 1 2 ?y ?z))))=>(matmul 0 ?x ?z)
"""


def write_rules(rng: Draw, folder: Path) -> Path:
    rules = [str(rule) for rule in load_rules()]
    text = damaged_text(rng, "\n".join(rng.sample(rules, 3)))
    (folder / "rules.txt").write_bytes(text.encode(errors="surrogatepass"))
    return folder / "rules.txt"


def read_rules(file: Path) -> None:
    """What is read can be written and read again, and is true or is refused."""
    rules = parse_rules(verify.read_text(file))
    again = parse_rules("\n".join(map(str, rules)))
    if [canonical(rule) for rule in again] != [canonical(rule) for rule in rules]:
        raise Wrong("rules change when they are written and read again")
    for rule in rules[:1]:
        try:
            verify.verify(rule, cases=2, draws=1)
        except verify.Rejected:
            continue


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message."""
    parts = []
    for number, value in fields:
        body = _varint(value) if isinstance(value, int) else _varint(len(value)) + value
        parts.append(_varint(number << 3 | (0 if isinstance(value, int) else 2)) + body)
    return b"".join(parts)


def _operator(kind: int, inputs: list[tuple[int, int]], params: dict[int, int]) -> bytes:
    return message((1, kind), *((2, message((1, op), (2, result))) for op, result in inputs),
                   *((3, message((1, key), (2, value))) for key, value in params.items()))  # fmt: skip


def sound_rule() -> bytes:
    """a c + b c = (a + b) c."""
    source = [
        _operator(18, [(-1, 0), (-3, 0)], {9: 0}),
        _operator(18, [(-2, 0), (-3, 0)], {9: 0}),
        _operator(16, [(0, 0), (1, 0)], {}),
    ]
    target = [_operator(16, [(-1, 0), (-2, 0)], {}), _operator(18, [(0, 0), (-3, 0)], {9: 0})]
    return message(
        *((1, op) for op in source), *((2, op) for op in target), (3, message((1, 2), (2, 1), (3, 0), (4, 0)))
    )


def write_protobuf(rng: Draw, folder: Path) -> Path:
    rules = message((1, sound_rule()), (1, sound_rule()))
    (folder / "rules.pb").write_bytes(damaged_bytes(rng, rules))
    return folder


def write_tensat(rng: Draw, folder: Path) -> Path:
    name = rng.choice(("rules.txt", "rules_multi.txt"))
    (folder / name).write_bytes(damaged_text(rng, TENSAT).encode(errors="surrogatepass"))
    return folder


def read_folder(folder: Path) -> None:
    """Every reading of every rule can be verified or is refused."""
    for found in foreign.read_folder(folder).values():
        for rule in found.rules[:1]:
            if not str(rule):
                raise Wrong("a rule without a text")
            for _, reading in foreign.readings(rule):
                try:
                    verify.verify(reading, cases=1, draws=1, granted=True)
                except verify.Rejected:
                    continue


RULES = (
    Format("rules", write_rules, read_rules),
    Format("rules_protobuf", write_protobuf, read_folder),
    Format("rules_tensat", write_tensat, read_folder),
)
