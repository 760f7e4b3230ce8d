"""The command line's manners: one clear sentence per error, no traceback unless asked for. Imports nothing heavy."""

import argparse
import contextlib
import difflib
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from graphopt import CONF, OWN_OPTIONS
from graphopt.core.utils import registry
from graphopt.core.utils.process import ended_soon, seldom_collected
from graphopt.core.utils.terminal import printable, say

INTERRUPTED = "interrupted; the same command goes on where it stopped"


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Turns an exception of the command into one sentence and an exit code: 1, or 2 for an invalid command line, 130
    after Ctrl-C and 143 after SIGTERM. GRAPHOPT_TRACEBACK=1 or HYDRA_FULL_ERROR=1 show tracebacks instead."""
    asked = "1" in (os.environ.get("GRAPHOPT_TRACEBACK"), os.environ.get("HYDRA_FULL_ERROR"))
    terminated: list[int] = []
    try:
        with _manners(), _terminable(terminated), seldom_collected():
            yield
    except KeyboardInterrupt:
        say(INTERRUPTED, sys.stderr)
        sys.exit(143 if terminated else 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: not an error of ours
        sys.exit(0)
    except Exception as error:
        if asked:
            raise
        sentence, code = explained(error)
        say(sentence, sys.stderr)
        sys.exit(code)


@contextlib.contextmanager
def _terminable(received: list[int]) -> Iterator[None]:
    """SIGTERM is a KeyboardInterrupt, so that all that is put right after Ctrl-C is put right here too; it is noted in
    `received`. Signals only reach the main thread."""

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with ended_soon(INTERRUPTED):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def readable_help(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra's help with a line for every option, and lines broken between words at the width of the terminal."""
    if not {"--help", "-h"} & {*arguments}:
        yield
        return
    text, width = io.StringIO(), max(40, min(shutil.get_terminal_size((100, 24)).columns, 100))
    try:
        with contextlib.redirect_stdout(text):
            yield
    finally:
        for line in chain.from_iterable(_with_purposes(line, width) for line in text.getvalue().splitlines()):
            wrap = textwrap.TextWrapper(width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
            print("\n".join(wrap.wrap(line)) if len(line) > width else line)


def _with_purposes(line: str, width: int) -> list[str]:
    """`GROUP: NAME, NAME, ...` as one line for each option, with its purpose."""
    group, _, names = line.partition(": ")
    if not (CONF / group).is_dir() or not names:
        return [line]
    widest = max(map(len, names.split(", ")))
    said = [f"  {name:{widest}}  {registry.purpose(group, name)}".rstrip() for name in names.split(", ")]
    return [f"{group}:", *(one if len(one) <= width else f"{one[: width - 4].rpartition(' ')[0]} ..." for one in said)]


def for_each_job(words: Sequence[str]) -> list[str]:
    """The words of a sweep, where words that set a key inside a group (`algo.hops=2`) become a choice of one value.
    Hydra applies words without alternatives to the default options first, whatever jobs choose, and fails if the
    default lacks the key. The same of an experiment's own words for algorithms."""
    own = {f"algo={name}" for word in words if word.startswith("experiment=") for name in _own_algos(word[11:])}
    words = [_choice_of_one(word) if word in own else word for word in words]
    if not {"-m", "--multirun"} & {*words}:
        return list(words)
    groups = [path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra"]
    inside = re.compile(rf"({'|'.join(groups)}|judge)\.[\w.]+=.+")
    return [_choice_of_one(word) if inside.fullmatch(word) else word for word in words]


def _own_algos(experiment: str) -> set[str]:
    """Names of `hydra.sweeper.algos` in the experiment's file and those that it extends."""
    from omegaconf import OmegaConf

    if experiment not in registry.options("experiment"):
        return set()
    node: Any = OmegaConf.load(registry.file_of("experiment", experiment))
    bases = [base for base in node.get("defaults", []) if isinstance(base, str) and base != "_self_"]
    return set(OmegaConf.select(node, "hydra.sweeper.algos") or ()).union(*map(_own_algos, bases))


def _choice_of_one(word: str) -> str:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = word.partition("=")
    try:
        varies = OverridesParser.create().parse_override(word).is_sweep_override()
    except HydraException:  # Hydra itself says so
        return word
    if value == "null":  # of which Hydra makes no choice
        value = "'${oc.decode:null}'"
    return word if varies else f"{key}=choice({value})"


@contextlib.contextmanager
def config_dir(arguments: Sequence[str]) -> Iterator[None]:
    """Lets `compat` know the folder of the user's own options that `--config-dir` (Hydra's own flag) names, here and in
    processes that are begun meanwhile."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    given, before = parser.parse_known_args(arguments)[0].config_dir, os.environ.get(OWN_OPTIONS)
    if given is not None:
        os.environ[OWN_OPTIONS] = os.path.abspath(given)
    try:
        yield
    finally:
        if given is not None:
            os.environ.pop(OWN_OPTIONS) if before is None else os.environ.update({OWN_OPTIONS: before})


@contextlib.contextmanager
def _manners() -> Iterator[None]:
    """For the time of the command: Hydra raises instead of printing and exiting, and warnings are one line."""
    before, format_before = os.environ.get("HYDRA_FULL_ERROR"), warnings.formatwarning
    os.environ["HYDRA_FULL_ERROR"], warnings.formatwarning = "1", _warning
    try:
        yield
    finally:
        warnings.formatwarning = format_before
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning in one line, without the place in the code."""
    return f"warning: {printable(message)}\n"


def explained(error: BaseException, words: Sequence[str] | None = None) -> tuple[str, int]:
    """(sentence, exit code) of an error. words: those that were composed, by default of the command line."""
    from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    from graphopt.core.errors import UserError
    from graphopt.core.graph import GraphError

    if isinstance(error, UserError):
        return str(error), error.exit_code
    if isinstance(error, GraphError):
        return str(error), 1
    if isinstance(error, MissingConfigException):
        return _missing(error), 1
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}; write KEY=VALUE, see python run.py --help", 2
    if isinstance(error, ConfigCompositionException):
        return _override(error, sys.argv[1:] if words is None else words), 2
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _line(error), 2
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; choose another place, such as another output_dir=...", 1
    if type(error) in (ValueError, TypeError) and _module_of(error) == "hydra._internal.defaults_list":
        return "a config group was given no option by name; choose GROUP=NAME, see python run.py --help", 2
    return f"unexpected {type(error).__name__}: {_line(error)} (GRAPHOPT_TRACEBACK=1 shows where)", 1


def _module_of(error: BaseException) -> str:
    """Where an error was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")) if frames else ""


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def composed(settings: Sequence[str]) -> dict[str, Any]:
    """The configuration of a command line such as `task=fusion seed=1`, as plain containers."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_container(compose("config", overrides=list(settings)), resolve=True)
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


def _missing(error: BaseException) -> str:
    """From "Could not find 'task/rewrite'"."""
    from graphopt.core.utils.registry import options

    found = re.search(r"Could not find '([^']+)/([^'/]+)'", str(error))
    if found is None:
        return _line(error)
    group, name = found.groups()
    known = options(group)
    if group == "dataset" and re.search(r"\.(onnx|json|npz)$|/", name):
        return f"dataset={name} is no data set; for a model in a file say dataset=onnx dataset.path={name}"
    return f"{group}={name} does not exist{meant(name, known)}; available: {', '.join(known) or 'none'}"


def meant(name: str, known: Sequence[str]) -> str:
    """ ", did you mean ...?", where something known is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _override(error: BaseException, words: Sequence[str]) -> str:
    """From "Could not override 'algo.typo'": the keys that stand beside it."""
    from graphopt.core.utils.registry import options

    found = re.search(r"Could not override '([^']+)'", str(error))
    if found is None:
        return _line(error)
    key = found.group(1)
    if options(key):
        return f"{key} is a config group; choose {key}=..., one of {', '.join(options(key))}"
    parent, _, _ = key.rpartition(".")
    owner, keys = _siblings(parent, words)
    if owner is None:
        _, top = _siblings("", words)
        return f"{parent} does not exist{meant(parent, top)}; keys: {', '.join(top)}"
    return f"{key} does not exist{meant(key.rpartition('.')[2], keys)}; keys{owner}: {', '.join(keys)}"


def _siblings(parent: str, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """(" of algo=go", its keys) for `parent` = "algo", with the config groups that the command line chose; None where
    there is no such parent."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig, OmegaConf

    GlobalHydra.instance().clear()
    chosen = [a for a in words if re.fullmatch(r"[a-z]+(@[a-z]+)?=[\w]+", a) and _is_group(a)]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=chosen)
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig):
        return None, []
    owner = f" of {parent}={node['name']}" if "name" in node else f" of {parent}" if parent else ""
    return owner, [str(key) for key in node if key not in ("_target_", "name")] or ["none"]


def _is_group(argument: str) -> bool:
    from graphopt.core.utils.registry import options

    group, _, name = argument.partition("=")
    return name in options(group.partition("@")[0])
