"""Plain English: a sentence has at most 30 words and 4 numbers, in pages, docstrings, comments of yaml files and error
messages. What does not comply yet is counted below, and may only become less.

`python -m pytest tests/project/test_english.py -s` prints the sentences of pages that have none to spare.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS, NUMBERS = 30, 4
MOST = {  # sentences that are too long, by page; others have none
    "docstrings": 13,
    "results/fusion.md": 20,
    "results/joint.md": 2,
    "results/laf.md": 26,
    "results/measured.md": 3,
    "results/placement.md": 25,
    "results/regal.md": 32,
    "results/rewriting.md": 6,
    "results/xrlflow.md": 7,
}
SHORT = re.compile(r"\b(e\.g|i\.e|vs|Fig|Sec|al|approx|cf)\.\s")  # no ends of sentences
END = re.compile(r"(?<=[.!?])[)\"'*]*\s+|;\s+|:\s+(?=[A-Z])")
NUMBER = re.compile(r"(?<![\w.`-])[-+]?\d[\d,]*(?:\.\d+)?")
INTERVAL = re.compile(r"\[[-+]?[\d.,]+, [-+]?[\d.,]+\]")  # belongs to the number before it


def too_long(text: str) -> list[str]:
    """The sentences of a paragraph that have too many words or numbers."""
    text = SHORT.sub(lambda found: found.group(1).replace(".", "") + " ", " ".join(text.split()))
    return [
        one for one in END.split(text)
        if len(re.findall(r"[A-Za-z0-9][\w'./%-]*", one)) > WORDS or len(NUMBER.findall(one)) > NUMBERS
    ]  # fmt: skip


def paragraphs(page: str) -> Iterator[str]:
    """Of a page in Markdown or a docstring, without code, tables, pictures and addresses."""
    page = re.sub(r"^```.*?^```|<!--.*?-->", "", page, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*] )|\n(?=#)|\n(?=\d+\. )", page):
        lines = [line for line in block.splitlines() if not re.match(r"    |[|#]|!\[|.* \| ", line)]
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(lines))
        yield INTERVAL.sub("", re.sub(r"`[^`]*`", "CODE", text))


def sources() -> Iterator[ast.Module]:
    for file in sorted((ROOT / "graphopt").rglob("*.py")):
        yield ast.parse(file.read_text())


def message_of(node: ast.expr) -> str:
    """The text of a string, with a word for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(message_of(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else "VALUE"


def found() -> dict[str, list[str]]:
    places, patterns = {}, ("*.md", "docs/*.md", "results/*.md", "benchmarks/*.md", "tests/*/*.md")
    for page in sorted(page for pattern in patterns for page in ROOT.glob(pattern)):
        text = page.read_text()
        places[str(page.relative_to(ROOT))] = [one for block in paragraphs(text) for one in too_long(block)]
    docstrings, messages = list[str](), list[str]()
    for tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                docstrings += [one for block in paragraphs(text) for one in too_long(block)]
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                messages += too_long(message_of(node.exc.args[0]))
    comments = [
        line.partition("# ")[2] for file in (ROOT / "conf").rglob("*.yaml") for line in file.read_text().splitlines()
    ]
    return {**places, "docstrings": docstrings, "messages": messages,
            "comments of yaml files": [one for comment in comments for one in too_long(comment)]}  # fmt: skip


def test_sentences_are_short() -> None:
    places = found()
    counts = Counter({place: len(long) for place, long in places.items()})
    for place, long in places.items():
        if counts[place] > MOST.get(place, 0):
            print(place, *long, sep="\n  ")
    grown = {place: (count, MOST.get(place, 0)) for place, count in counts.items() if count > MOST.get(place, 0)}
    assert not grown, f"sentences of more than {WORDS} words or {NUMBERS} numbers, (now, at most): {grown}"
    spare = {place: (counts[place], most) for place, most in MOST.items() if counts[place] < most}
    assert not spare, f"fewer than tests/project/test_english.py allows: {spare}; lower its numbers"


def test_the_rule_is_kept_by_sentences_and_not_by_paragraphs() -> None:
    assert not too_long("One two three. " * 20)
    assert too_long("word " * 31) and not too_long("word " * 30)
    assert too_long("1, 2, 3, 4 and 5") and not too_long("1, 2, 3 and 4 of `5`")
    assert not [one for block in paragraphs("    " + "code " * 40) for one in too_long(block)]
