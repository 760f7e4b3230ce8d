"""Rules of others' files: read, proved, and mutants of true rules refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_data import check_data

from graphopt.errors import UserError
from graphopt.rewrite.egraphs.saturation import Prover, SaturationLimits
from graphopt.rewrite.generation.foreign import read_folder, read_protobuf, read_text_form, readings
from graphopt.rewrite.prove import main, proof, true_reading
from graphopt.rewrite.rules.expressions import Literal
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.patterns import Node, Pattern
from graphopt.rewrite.rules.rule import Rule
from graphopt.rewrite.rules.symmetry import canonical
from graphopt.rewrite.verify import Rejected, verify

# --- Substitutions of TASO and Tensat: read, understood alike, proved from generated rules.

CHUNKS = 19
HARMLESS = ("operands of add", "operands of mul", "conv none to relu", "matmul none to relu")


def unordered(rule: Rule) -> tuple[object, ...]:
    """The rule up to names and the order of its outputs."""
    forms = []
    for step in (1, -1):
        plain = canonical(Rule("", rule.sources[::step], rule.targets[::step]))
        forms.append((tuple(map(str, plain.sources)), tuple(map(str, plain.targets))))
    return (min(forms), len(rule.conditions))


def test_protobuf_and_text_say_the_same() -> None:
    found = read_folder(check_data("rewriting"))
    protobuf = found["taso_graph_subst.pb"].rules
    text = [*found["tensat_converted.txt"].rules, *found["tensat_converted_multi.txt"].rules]
    assert len(protobuf) == len(text) == 133
    assert sum(len(rule.sources) == 2 for rule in protobuf) == 13
    assert sorted(map(unordered, protobuf), key=str) == sorted(map(unordered, text), key=str)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_substitution_is_proved(chunk: int) -> None:
    prover = Prover(load_rules("generated"))
    for rule in read_protobuf(check_data("rewriting") / "taso_graph_subst.pb").rules[chunk::CHUNKS]:
        _, reading = true_reading(rule)
        assert proof(reading, prover, SaturationLimits()) is not None, reading


def test_two_lines_as_the_files_write_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("(relu (conv2d 1 1 0 0 ?a ?b))=>(conv2d 1 1 0 2 ?a ?b)\n")
    (tmp_path / "b_multi.txt").write_text(
        "(relu ?a)=>(split_0 (split 1 (relu (concat 1 2 ?a ?b))))\n"
        "(relu ?b)=>(split_1 (split 1 (relu (concat 1 2 ?a ?b))))\n"
    )
    found = read_folder(tmp_path)
    (single,), (several,) = found["a.txt"].rules, found["b_multi.txt"].rules
    expected = parse_rules(
        "a_0: (relu (conv [1,1] [1,1,1,1] none ?a ?b)) => (conv [1,1] [1,1,1,1] relu ?a ?b)"
        " where rank(?a) = 4, rank(?b) = 4, kernel(?b) = [3,3]\n"
        "b_multi_0: (relu ?a), (relu ?b) => (item 0 (split 1 {sizes(1, ?a, ?b)} (relu (concat 1 ?a ?b)))),"
        " (item 1 (split 1 {sizes(1, ?a, ?b)} (relu (concat 1 ?a ?b)))) where rank(?a) = 2, rank(?b) = 2"
    )
    assert (single, several) == expected


def test_readings_narrow_what_the_files_leave_open() -> None:
    (rule,) = parse_rules(
        "a: (concat 1 (conv [1,1] [1,1,1,1] none ?x ?v) (conv [1,1] [1,1,1,1] none ?y ?w))"
        " => (conv [1,1] [1,1,1,1] none (concat 1 ?x ?y) (concat 0 ?v ?w))"
    )
    assert next(name for name, _ in readings(rule)) == "all shapes"
    assert true_reading(rule)[0] == "convs of one group with kernels of one shape"


def test_a_false_rule_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules.txt").write_text(
        "(ewadd ?a ?b)=>(ewadd ?b ?a)\n(matmul 0 ?a ?b)=>(matmul 0 ?b ?a)\n(relu (relu ?a))=>(relu ?a)\n"
    )
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "rules.txt: 2 of 3 proved" in printed and "not true: rules_1: (matmul none ?a ?b)" in printed
    assert "instead of float32" in printed and "?a = (" in printed, "the counterexample"


def test_rules_of_unknown_operators_are_skipped_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules.txt").write_text(
        "(ewadd ?a ?b)=>(ewadd ?b ?a)\n(gelu ?a)=>(gelu ?a)\n(relu ?a)=>(gelu (erf ?a))\n(erf ?a)=>(erf ?a)\n"
    )
    (tmp_path / "taso.pb").write_bytes(bytes([10, 4, 10, 2, 8, 99]))
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "rules.txt: 1 of 1 proved" in printed and "unknown here: 3: gelu (2), erf (1)" in printed
    assert "taso.pb: 0 of 0 proved" in printed and "unknown here: 1: operator 99 (1)" in printed


def convs(stride: int, other: int, padding: int) -> str:
    """relu(conv(x, w)) = conv with relu, of another stride or padding."""
    return (
        f"(relu (conv2d {stride} {stride} 0 0 ?x ?w))=>(conv2d {other} {other} {padding} 2 ?x ?w)\n"
        f"(conv2d {stride} {stride} 0 0 ?x (ewadd ?v ?w))"
        f"=>(ewadd (conv2d {stride} {stride} 0 0 ?x ?v) (conv2d {other} {other} {padding} 0 ?x ?w))\n"
    )


@pytest.mark.parametrize("stride, other, padding", [(1, 2, 0), (2, 1, 0), (1, 1, 1), (2, 2, 1)])
def test_strides_and_paddings_that_matter_only_on_larger_images_are_refuted(
    stride: int, other: int, padding: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.txt").write_text(convs(stride, other, padding))
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "wrong.txt: 0 of 2 proved" in printed and printed.count("not true: ") == printed.count("for ?x = (") == 2
    (tmp_path / "wrong.txt").write_text(convs(stride, stride, 0))
    assert main([str(tmp_path)]) == 0


@pytest.mark.parametrize("first, second", [(0, 1), (1, 2), (3, 1), (2, 0)])
def test_concats_of_two_axes_are_exchanged(
    first: int, second: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outer, inner = f"concat {first} 4", f"concat {second} 4"
    right = f"({inner} ({outer} ?a ?c) ({outer} ?b ?d))"
    wrong = f"({inner} ({outer} ?a ?b) ({outer} ?c ?d))"
    for name, target in (("right", right), ("wrong", wrong)):
        (tmp_path / f"{name}.txt").write_text(f"({outer} ({inner} ?a ?b) ({inner} ?c ?d))=>{target}\n")
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "right.txt: 1 of 1 proved" in printed and "wrong.txt: 0 of 1 proved" in printed and "not true" in printed


@pytest.mark.parametrize("chunk", range(8))
def test_mistakes_are_refuted_with_a_counterexample(chunk: int) -> None:
    """What is not refuted is true: by exact integers in many further cases, and only two mistakes can be none: the
    operands of sums and products may be exchanged, and a relu of a relu is one."""
    every = [mutant for rule in read_protobuf(check_data("rewriting") / "taso_graph_subst.pb").rules
             for mutant in mutants(rule)]  # fmt: skip
    picked = np.random.default_rng(chunk).choice(len(every), 6, replace=False)
    for mistake, rule in (every[k] for k in picked):
        try:
            _, reading = true_reading(rule)
        except Rejected as error:
            assert error.instance is not None and "for ?x" in str(error), error
        else:
            assert verify(reading, seed=1, cases=150, granted=True) > 20, (mistake, rule)
            assert mistake in HARMLESS, (mistake, rule)


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "it is no collection of rules"),
        (b"\x0a\xff", "it ends in the middle of a number"),
        (b"\x0a\x05ab", "is no field of a rule"),
        (b"not a protobuf at all", "cannot read"),
    ],
)
def test_broken_protobuf_is_one_sentence(content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.pb").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read_protobuf(tmp_path / "a.pb")


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("(relu ?a)", "no rule"),
        ("(relu ?a=>?a", "a line ends too early"),
        ("(relu ?a) ?b=>?a", "follows a whole pattern"),
        ("(relu ?a)=>?b", r"\?b does not occur in a source"),
        ("(relu ?a)=>(split_0 (split 1 ?a))", "a split cuts what no concat joined"),
        ("(conv2d 1 x 0 0 ?a ?b)=>?a", "invalid literal"),
    ],
)
def test_broken_text_is_one_sentence(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_text_form(tmp_path / "a.txt")


def test_a_folder_without_substitutions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no substitutions in"):
        read_folder(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        read_folder(tmp_path / "none")


def varint(number: int) -> bytes:
    low, rest = number & 127, (number % 2**64) >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def message(**fields: Any) -> bytes:
    """A protobuf message; names f1, f2 are numbers of fields, values numbers or lists of messages."""
    out = b""
    for name, value in fields.items():
        for inner in value if isinstance(value, list) else [value]:
            number = int(name[1:]) << 3
            out += varint(number) + varint(inner % 2**64) if isinstance(inner, int) else (
                varint(number | 2) + varint(len(inner)) + inner)  # fmt: skip
    return out


def collection(operators: list[bytes]) -> bytes:
    """One rule with these operators on both sides; its output is the last one's."""
    output = message(f1=len(operators) - 1, f2=len(operators) - 1, f3=0, f4=0)
    return message(f1=[message(f1=operators, f2=operators, f3=[output])])


def operator(kind: int, inputs: list[int], **params: int) -> bytes:
    return message(f1=kind, f2=[message(f1=op, f2=0) for op in inputs],
                   f3=[message(f1=int(key[1:]), f2=number) for key, number in params.items()])  # fmt: skip


def test_small_files_do_not_become_large_patterns(tmp_path: Path) -> None:
    """Sixty sums, each of the one before with itself, are a tree of 2^60; a split may ask for 10^12 parts."""
    file = tmp_path / "a.pb"
    sums = [operator(16, [-1, -2]), *(operator(16, [k, k]) for k in range(60))]
    parts = [operator(12, [-1, -2], p11=0, p10=2), operator(13, [0], p11=0, p2=10**12)]
    for operators, what in ((sums, "more than"), (parts, "parts")):
        file.write_bytes(collection(operators))
        with pytest.raises(UserError, match=what):
            read_protobuf(file)
    file.write_bytes(collection(sums[:2]))
    (rule,) = read_protobuf(file).rules
    assert str(rule.sources[0]) == "(add (add ?x1 ?x2) (add ?x1 ?x2))"


@pytest.mark.parametrize(
    "line", ["(relu " * 50_000 + "?a" + ")" * 50_000 + "=>?a", "(matmul " + "9" * 5000 + " ?a ?b)=>?a"]
)
def test_text_rules_that_no_reader_can_follow_are_a_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(line)
    with pytest.raises(UserError, match="cannot read") as caught:
        read_text_form(tmp_path / "a.txt")
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize("rule", ["a: " + "(relu " * 50_000 + "?x => ?x", "a: (concat " + "9" * 5000 + " ?x) => ?x"])
def test_rules_that_no_reader_can_follow_are_a_sentence(rule: str) -> None:
    with pytest.raises(UserError, match="line 1: ") as caught:
        parse_rules(rule)
    assert len(str(caught.value)) < 1500


def test_a_name_that_would_be_a_word_of_generated_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("(ewadd ?../x ?b)=>(ewadd ?b ?../x)\n")
    with pytest.raises(UserError, match="is no name of a variable"):
        read_folder(tmp_path)


# --- Rules with one mistake: another stride, padding, activation, axis, part or operator, or two operands exchanged.

ACTIVATIONS = ("none", "relu", "tanh", "sigmoid")
STRIDES, PADS = ((1, 1), (2, 2), (1, 2)), ((0, 0, 0, 0), (1, 1, 1, 1), (1, 1, 0, 0))
PARAMS = {"conv": (STRIDES, PADS, ACTIVATIONS), "matmul": (ACTIVATIONS,), "concat": (range(4),), "split": (range(4),),
          "item": (range(2),)}  # fmt: skip
ALIKE = {"relu": ("tanh",), "tanh": ("sigmoid",), "sigmoid": ("relu",), "add": ("mul",), "mul": ("add",)}


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """What was changed in the targets, and the changed rule."""
    for place, target in enumerate(rule.targets):
        for mistake, changed in _changed(target):
            targets = (*rule.targets[:place], changed, *rule.targets[place + 1 :])
            yield mistake, replace(rule, targets=targets)


def _changed(pattern: Pattern) -> Iterator[tuple[str, Pattern]]:
    if not isinstance(pattern, Node):
        return
    for k, options in enumerate(PARAMS.get(pattern.operator, ())):
        param = pattern.params[k]
        for value in options:
            if isinstance(param, Literal) and param.value != value:
                params = (*pattern.params[:k], Literal(value), *pattern.params[k + 1 :])
                yield f"{pattern.operator} {param} to {Literal(value)}", replace(pattern, params=params)
    for operator in ALIKE.get(pattern.operator, ()):
        yield f"{pattern.operator} to {operator}", replace(pattern, operator=operator)
    if len(pattern.inputs) == 2 and pattern.inputs[0] != pattern.inputs[1]:
        yield f"operands of {pattern.operator}", replace(pattern, inputs=pattern.inputs[::-1])
    for k, inner in enumerate(pattern.inputs):
        for mistake, changed in _changed(inner):
            yield mistake, replace(pattern, inputs=(*pattern.inputs[:k], changed, *pattern.inputs[k + 1 :]))
