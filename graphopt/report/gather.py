"""Captures the catalogue of models (`graphopt.graphs.library`) as graphs, without weights:

    pip install graphopt[models]
    graphopt models capture outputs/models            # an hour; goes on where it stopped
    graphopt models capture outputs/models --only timm monai

    graphopt models capture outputs/models --pack graphopt/graphs/model_graphs    # what the package ships

FOLDER/graphs/*.npz holds the graphs, FOLDER/entries.jsonl a line for every entry: its graph, or why there is none.
"""

import argparse
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from graphopt.core.errors import UserError, writing
from graphopt.core.utils.marks import count, seconds
from graphopt.core.utils.process import AnswerTimeout, Process, ProcessEnd
from graphopt.core.utils.terminal import Bar
from graphopt.graphs.library.catalogue import PACKAGES, LibraryModel, catalogue, entries
from graphopt.graphs.library.packing import pack

ENTRIES = "entries.jsonl"


def gather(entries: Sequence[LibraryModel], folder: Path, *, seconds: float, most_ops: int) -> list[dict[str, Any]]:
    """A line for every entry; those that have one are passed over. One process captures, and is begun anew when an
    entry takes longer than `seconds` or ends it."""
    (folder / "graphs").mkdir(parents=True, exist_ok=True)
    done = {line["name"]: line for line in lines_of(folder)}
    process = Process("graphopt.graphs.library.worker", {}, {**os.environ, "TRANSFORMERS_VERBOSITY": "error"})
    try:
        with Bar("capture", len(entries)) as bar, open(folder / ENTRIES, "a+") as log:
            if log.tell() and not (folder / ENTRIES).read_bytes().endswith(b"\n"):
                log.write("\n")  # the line that a killed run left unfinished ends here
            for entry in entries:
                if entry.name not in done:
                    done[entry.name] = line = _captured(process, entry, folder, seconds, most_ops)
                    with writing(folder / ENTRIES):
                        log.write(json.dumps(line) + "\n")
                        log.flush()
                bar.step(f"{entry.name}: {done[entry.name].get('ops', '-')}")
    finally:
        process.end()
    return [done[entry.name] for entry in entries]


def _captured(process: Process, entry: LibraryModel, folder: Path, seconds: float, most_ops: int) -> dict[str, Any]:
    """The line of an entry: its graph's file, or the reason why there is none."""
    began = time.perf_counter()
    file = folder / "graphs" / f"{re.sub(r'[^A-Za-z0-9_.+-]', '_', entry.name)}.npz"
    try:
        found = process.ask({"entry": asdict(entry), "file": str(file), "most_ops": most_ops}, seconds)
        found.pop("id")
    except AnswerTimeout:
        found = {"reason": f"not captured within {seconds:.0f} s"}
    except ProcessEnd:
        found = {"reason": "ended the capturing process"}
    return {"name": entry.name, **asdict(entry), **found, "seconds": round(time.perf_counter() - began, 2),
            "version": version(PACKAGES[entry.library])}  # fmt: skip


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """What is known of entries so far; a line that a killed run left unfinished is not."""
    with suppress(FileNotFoundError), open(folder / ENTRIES) as log:
        for text in log:
            with suppress(json.JSONDecodeError):
                yield json.loads(text)


def installed(names: Sequence[str]) -> list[LibraryModel]:
    """The entries of some libraries. Raises UserError where one is not installed."""
    found: list[LibraryModel] = []
    for name in names:
        if find_spec(PACKAGES[name]) is None:
            raise UserError(
                f"{PACKAGES[name]} is not installed: pip install graphopt[models], or leave it out with --only"
            )
        found += entries(name)
    return found


def origins(lines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Library -> versions that were captured, licence and source."""
    found: dict[str, set[str]] = {}
    for line in lines:
        found.setdefault(line["library"], set()).add(line["version"])
    known = catalogue()
    return {name: f"{' and '.join(sorted(versions))}, {known[name]['licence']}, {known[name]['source']}"
            for name, versions in sorted(found.items())}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt models capture", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=PACKAGES, default=PACKAGES, metavar="LIBRARY")
    parser.add_argument("--seconds", type=seconds, default=120.0, help="that an entry may take (%(default)s)")
    parser.add_argument("--most-ops", type=count, default=20_000, help="larger graphs are left out (%(default)s)")
    parser.add_argument("--pack", type=Path, metavar="TARGET", help="capture nothing: pack what is there")
    args = parser.parse_args(arguments)
    if args.pack:
        return _pack(args.folder, args.pack)
    lines = gather(installed(args.only), args.folder, seconds=args.seconds, most_ops=args.most_ops)
    graphs = [line for line in lines if "graph" in line]
    print(f"{len(graphs):,} graphs of {len({line['hash'] for line in graphs}):,} kinds and "
          f"{len({(line['library'], line['family']) for line in graphs}):,} families in {args.folder}; "
          f"{len(lines) - len(graphs):,} entries have none ({ENTRIES} says why)")  # fmt: skip
    return 0


def _pack(folder: Path, target: Path) -> int:
    lines = sorted((line for line in lines_of(folder) if "graph" in line), key=lambda line: str(line["name"]))
    if not lines:
        raise UserError(f"{folder} has no graphs; graphopt models capture {folder} captures them")
    index = pack(folder, lines, origins(lines), target)
    parts = {split: [line for line in index if line["split"] == split] for split in ("train", "val", "test")}
    print(f"{len(index):,} of {len(lines):,} graphs are no copies, in {target}")
    for split, own in parts.items():
        print(f"{split}: {len(own):,} graphs, {len({(line['library'], line['family']) for line in own})} families, "
              f"{len({line['cluster'] for line in own})} clusters")  # fmt: skip
    return 0
