"""Rules in their text form."""

from functools import lru_cache
from pathlib import Path

from graphopt.core.errors import UserError
from graphopt.rewrite import verify
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import canonical

from ..judge import Format, Wrong
from ..mutate import Draw, text_file


@lru_cache(maxsize=1)
def sound() -> tuple[str, ...]:
    return tuple(map(str, load_rules()))


def write(rng: Draw, folder: Path) -> Path:
    file = folder / "rules.txt"
    file.write_bytes(text_file(rng, "\n".join(rng.sample(sound(), 3))))
    return file


def read(file: Path) -> None:
    """What is read can be written and read again, and is true or is refused."""
    try:
        text = file.read_text()
    except ValueError as error:  # as the command says it
        raise UserError(f"cannot read {file} as text: {error}") from None
    rules = parse_rules(text)
    again = parse_rules("\n".join(map(str, rules)))
    if [canonical(rule) for rule in again] != [canonical(rule) for rule in rules]:
        raise Wrong("rules change when they are written and read again")
    for rule in rules[:1]:
        try:
            verify.verify(rule, cases=2, draws=1)
        except verify.Rejected:
            continue


RULES = (Format("rules", write, read),)
