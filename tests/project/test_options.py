"""docs/options.md lists every option with its settings, from the yaml files. `python tests/project/test_options.py`
writes it anew. Every setting has a comment: its own, or that of the same setting in another option of the group.
"""

import re
from pathlib import Path

from graphopt.core.utils import registry

ROOT = Path(__file__).resolve().parents[2]
PAGE, GROUPS = (
    ROOT / "docs" / "options.md",
    ("task", "machine", "cost", "encoder", "algo", "dataset", "trainer", "logger"),
)
HEAD = """# Options and their settings

`GROUP=OPTION` chooses an option, `GROUP.SETTING=VALUE` changes a setting: `python run.py task=fusion algo=local
algo.hops=2`. The judge, `cost@judge=OPTION`, is an option of `cost`, with `judge.SETTING=VALUE`. An option has the
settings of the one that it is built on, too. Which options fit together: [compatibility](compatibility.md). This page
is made from the comments of the yaml files in `conf/`.
"""
UNSAID = ("_target_", "name", "defaults")
Setting = tuple[str, str, str]  # dotted key, value, comment


def settings_of(file: Path) -> list[Setting]:
    """In the order of the file; a comment on a line of its own belongs to the setting below."""
    found, above = list[Setting](), list[tuple[int, str]]()
    for line in file.read_text().splitlines():
        key = re.match(r"( *)(?:- )?([\w@/]+):(.*)", line)
        if key is None or line.lstrip().startswith("#"):
            continue
        while above and above[-1][0] >= len(key[1]):
            above.pop()
        above.append((len(key[1]), key[2]))
        if above[0][1] in UNSAID or key[2].startswith("_"):
            continue
        value, _, comment = key[3].partition("# ")
        found.append((".".join(name for _, name in above), value.strip(), comment.strip()))
    return found


def bases_of(file: Path) -> list[str]:
    """Options of the group that it is built on."""
    said = re.search(r"^defaults: \[(.*)\]$", file.read_text(), re.M)
    return (
        []
        if said is None
        else [name for name in said[1].replace(" ", "").split(",") if name.isidentifier() and name != "_self_"]
    )


def meaning(group: str, key: str) -> str:
    """What other options of the group say of a setting: of the same key, else of the same last name."""
    rest = [one for file in sorted((ROOT / "conf" / group).glob("*.yaml")) for one in settings_of(file) if one[2]]
    alike = [said for known, _, said in rest if known == key]
    return (alike or [said for known, _, said in rest if known.split(".")[-1] == key.split(".")[-1]] or [""])[0]


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    parts = [HEAD]
    for group in GROUPS:
        parts.append(f"\n## {group}\n")
        for name in registry.options(group):
            file = ROOT / "conf" / group / f"{name}.yaml"
            built = "".join(f" Built on `{base}`." for base in bases_of(file))
            parts.append(f"\n**`{group}={name}`**: {registry.purpose(group, name)}{built}\n")
            rows = [(key, value, said or meaning(group, key)) for key, value, said in settings_of(file)]
            if rows:
                parts.append("\n| setting | default | |\n|---|---|---|\n")
                parts += [
                    f"| {key} | {f'`{cell(value)}`' if value else ''} | {cell(said)} |\n" for key, value, said in rows
                ]
    return "".join(parts)


def test_the_page_of_options_is_the_files() -> None:
    assert PAGE.read_text() == page(), "python tests/project/test_options.py writes it anew"


def test_every_setting_says_what_it_means() -> None:
    for group in GROUPS:
        for file in (ROOT / "conf" / group).glob("*.yaml"):
            silent = [key for key, _, said in settings_of(file) if not (said or meaning(group, key))]
            assert not silent, f"{file}: no comment says what {silent} mean"


if __name__ == "__main__":
    PAGE.write_text(page())
