"""The command `graphopt`. Without a subcommand it runs, as `python run.py` does: `graphopt task=fusion algo=go`."""

import sys
from importlib import import_module

SUBCOMMANDS = {  # one word, or two: where its `main` is, and what it does
    "report": ("graphopt.report", "tables, curves, pictures, figures and replay of a study"),
    "answer": ("graphopt.decision", "show, replay, compare, edit and draw the file of an answer"),
    "board": ("graphopt.leaderboard.board", "price the leaderboard's entries again, write its page, enter a study"),
    "board tile": ("graphopt.tile", "solve or check a tiling problem of the contest"),
    "compat": ("graphopt.compat", "which algorithms fit which tasks"),
    "rules check": ("graphopt.rewrite.check", "what rewriting sees of an ONNX model"),
    "rules extract": ("graphopt.rewrite.extract", "the cheapest programs of files of e-graphs"),
    "rules generate": ("graphopt.rewrite.generate", "generate and verify rewrite rules"),
    "rules prove": ("graphopt.rewrite.prove", "prove the substitutions of other systems"),
    "rules verify": ("graphopt.rewrite.verify", "verify rewrite rules"),
    "models capture": ("graphopt.gather", "capture the models of well-known packages"),
    "models filter": ("graphopt.filter", "find random graphs with room for improvement"),
    "measure calibrate": ("graphopt.calibrate", "measure this machine for cost=calibrated"),
    "measure learn_cost": ("graphopt.learn_cost", "fit cost=learned to measured plans"),
    "measure race": ("graphopt.rewrite.race", "run two ONNX models by turns"),
    "study pack": ("graphopt.pack", "pack a finished study into a few small files"),
    "study ship": ("graphopt.ship", "put a trained policy beside those of the package"),
}


def main() -> None:
    """Runs what the command line names, and ends the process with its exit code."""
    words = sys.argv[1:]
    name = next((name for name in (" ".join(words[:2]), " ".join(words[:1])) if name in SUBCOMMANDS), None)
    if name is None and words[:1] and words[0] in {known.split()[0] for known in SUBCOMMANDS}:
        sys.exit(_listed(words[0]))
    if name is None:
        from graphopt.command import main as run

        return run()
    from graphopt.cli import sentences

    with sentences():
        sys.exit(import_module(SUBCOMMANDS[name][0]).main(words[len(name.split()) :]))


def _listed(group: str) -> int:
    """Says what may stand behind the first word of a subcommand; the exit code of a command line without meaning."""
    lines = [f"  graphopt {name:19} {does}" for name, (_, does) in SUBCOMMANDS.items() if name.split()[0] == group]
    print("\n".join([f"graphopt {group} needs one of these words; each has --help:", *lines]), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
