"""Checkpoints of learners: Lightning's own, of tensors and plain values only, so that `weights_only=True` loads them.

`last.ckpt` holds the state from which training goes on; the one before it is kept as `previous.ckpt`, in case the last
is damaged. `best.ckpt` is the best by validation. Beside Lightning's fields they have their origin, the cost of
training, and the state of random generators (`extra`). Lightning checks nothing that it puts back, so a digest of
everything is stored too, and a file that does not agree with its digest is not gone on from.
"""

import hashlib
import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO

from graphopt.core.errors import ConfigError, Unreadable, UserError, writing
from graphopt.core.utils.limits import MIB, check_zip, parse_json
from graphopt.core.utils.whole import whole_file
from graphopt.learn.encoders.features import DIGEST
from graphopt.learn.learner import Learner
from graphopt.run.config.compatibility import encoder_of
from graphopt.run.config.construct import dotted, target_of
from graphopt.run.config.stored import RESERVED, node_of, words

State = dict[str, Any]
FILE_BYTES = 1024 * MIB  # of all tensors
PLAIN_BYTES = 16 * MIB
DIGEST_KEY = "graphopt_digest"


def extra(learner: Learner, about: Mapping[str, Any], *, evals: int, finished: bool) -> State:
    """The fields of a training checkpoint beside Lightning's own: its facts (`about`), the cost of training (evals: of
    all processes), and the random generators."""
    counters = {"steps": learner.train_steps, "evals": evals, "seconds": learner.train_seconds}
    said = {key: value for key, value in about.items() if key != "settings"}  # these are Lightning's hyper-parameters
    plain = {**said, "counters": counters, "random": learner.random_state(), "note": {"finished": finished}}
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"plain": json.dumps(plain), "torch_random": [torch.get_rng_state(), *gpus]}


def put_back(learner: Learner, state: State, *, counts: bool) -> list[torch.Tensor]:
    """Counters and generators of the learner as `extra` found them, without the prices that another process counts;
    returns the state of torch's generators. Raises Unreadable where they are no such states."""
    restore_counters(learner, state)
    learner.train_evals *= counts
    try:
        learner.set_random_state(json.loads(state["plain"])["random"])
        torch.Generator().set_state(state["torch_random"][0])
    except Exception as error:  # any exception of NumPy and torch on other values
        raise Unreadable(f"a checkpoint's random state is damaged ({type(error).__name__}); train again") from None
    return list(state["torch_random"])


def about(config: Mapping[str, Any], learner: Learner) -> dict[str, Any]:
    """The facts of a checkpoint. `made_for` must agree with the run that uses it; `settings` are those that its network
    was built with; `features` is a digest of its encoder's inputs."""
    encoder = {} if (name := encoder_of(config)) is None else {"encoder": name}
    made_for = {"learner": type(learner).__name__, **encoder, **learner.made_for()}
    return {"made_for": made_for, "settings": settings_in(config), "features": DIGEST}


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The nodes of a configuration that determine a network, in the words of files: the algorithm, and the encoder if
    it takes one."""
    encoder = () if encoder_of(config) is None else ("encoder",)
    return {group: words(group, config[group]) for group in (*encoder, "algo")}


def settings_of(state: State, config: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """`settings_in` as a configuration here has them: the name and `network_settings` of the algorithm, and the encoder
    where the run has one; None for checkpoints that do not say. Raises UserError when they mean nothing here."""
    stored = said(state, "settings")
    if stored is None:
        return None
    kept = (*RESERVED, "name", *target_of(config["algo"], "algo").network_settings)
    said_of = {"algo": {key: value for key, value in stored["algo"].items() if key in kept}}
    if "encoder" in stored and encoder_of(config) is not None:
        said_of["encoder"] = stored["encoder"]
    return {group: node_of(group, node) for group, node in said_of.items()}


def said(state: State, key: str) -> Any:
    """A checkpoint's value under a key of `about`; None if it is older than the key."""
    known = {"settings": state.get("hyper_parameters")} if state.get("hyper_parameters") else {}
    return {**json.loads(state["plain"]), **known}.get(key)


def set_torch_random(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if torch.cuda.is_available() and len(states) == 1 + torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states[1:])


def restore_counters(learner: Learner, state: State) -> None:
    """Restores the cost of training so far."""
    counters = json.loads(state["plain"])["counters"]
    learner.train_steps, learner.train_evals, learner.train_seconds = (
        int(counters["steps"]), int(counters["evals"]), float(counters["seconds"]),
    )  # fmt: skip


def adopt_weights(learner: Learner, source: Path, about: Mapping[str, Any]) -> State:
    """Puts the weights of a checkpoint into a learner that solves as `about` says; returns the checkpoint. Raises
    UserError when it cannot be read, ConfigError when it does not fit."""
    state = load(source)
    check_made_for(state, about["made_for"], str(source))
    broken = [name for name, value in state["state_dict"].items() if not torch.isfinite(value).all()]
    if broken:
        raise ConfigError(f"{source} holds weights that are no numbers ({broken[0]}); train again or give another")
    load_weights(learner, state, str(source), about["settings"])
    return state


def load_weights(learner: Learner, state: State, source: str, settings: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError when the weights are for other features, or have other names or shapes. settings: the run's
    `settings_in`, to name the difference."""
    if said(state, "features") not in (None, DIGEST):  # checkpoints that do not say pass
        raise _other_inputs(source)
    try:
        missing, unexpected = learner.load_state_dict(state["state_dict"], strict=False)
        needed = [name for name in missing if not name.startswith(learner.training_only)]
        detail = ", ".join([f"lacks {name}" for name in needed] + [f"has {name}" for name in unexpected])
    except RuntimeError as error:
        detail = " ".join(str(error).split())
    if detail:
        differing = differences(_of_network(learner, said(state, "settings")), _of_network(learner, settings))
        why = "; ".join(f"trained with {path}={there}, this run has {here}" for path, there, here in differing)
        raise ConfigError(
            f"{source} does not fit algo={learner.name} as configured ({(why or detail)[:200]}); use its own settings"
        )


def _of_network(learner: Learner, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The part of `settings_in` that shapes weights."""
    known = settings or {"algo": {}}
    own = {key: value for key, value in known["algo"].items() if key in learner.network_settings}
    return {**known, "algo": own}


def _other_inputs(source: str) -> ConfigError:
    return ConfigError(
        f"{source} was trained on other features of graphs than this version of graphopt computes; train again, or use "
        "the version that made it"
    )


def differences(there: Mapping[str, Any], here: Mapping[str, Any], path: str = "") -> list[tuple[str, Any, Any]]:
    """(config path, value there, value here) of every setting that both have and that differs."""
    found: list[tuple[str, Any, Any]] = []
    for key in (key for key in there if key in here and there[key] != here[key]):
        below = isinstance(there[key], Mapping) and isinstance(here[key], Mapping)
        at = dotted(path, key)
        found += differences(there[key], here[key], at) if below else [(at, there[key], here[key])]
    return found


def check_made_for(state: State, made_for: Mapping[str, Any], source: str) -> None:
    """Raises ConfigError when the checkpoint is of another algorithm, encoder or kind of decision."""
    stored = said(state, "made_for")
    for key, value in json.loads(json.dumps(dict(made_for))).items():
        if key not in stored or stored[key] == value:
            continue
        if key == "decisions":
            raise ConfigError(
                f"{source} was trained to decide {_choices(stored[key])}, this run decides {_choices(value)}; choose "
                "the task it was trained for and a machine with as many devices"
            )
        if key == "inputs":
            raise _other_inputs(source)
        raise ConfigError(
            f"{source} was trained with {key}={str(stored[key])[:200]}, this run has {key}={value}; choose the same"
        )


def _choices(heads: Mapping[str, int]) -> str:
    return ", ".join(f"{head} ({choices} choices)" for head, choices in heads.items()) or "nothing"


def save(path: Path, state: State) -> None:
    """Writes all or nothing. Raises UserError when the disk does not take it."""
    with writing(path), whole_file(path) as file:
        file.write(_bytes(state))


class WholeFiles(TorchCheckpointIO):
    """Lightning's files, written beside their place. Its own way is to write them in the system's folder for temporary
    files and to move them. Moving is a copy where that is another disk: a kill in it would leave half of a file."""

    def save_checkpoint(self, checkpoint: State, path: str | Path, storage_options: Any = None) -> None:
        """Lightning's name for `save`."""
        save(Path(path), {**checkpoint, DIGEST_KEY: digest_of(checkpoint)})


def digest_of(state: State) -> str:
    """Of all keys, numbers and tensors, in their order."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            digest.update(f"{len(value)}".encode())
            for key, inner in value.items():
                digest.update(repr(key).encode())
                add(inner)
        elif isinstance(value, list | tuple):
            digest.update(f"{len(value)}".encode())
            for inner in value:
                add(inner)
        else:
            digest.update(repr(value).encode())

    add({key: value for key, value in state.items() if key != DIGEST_KEY})
    return digest.hexdigest()


def size(state: State) -> int:
    """Bytes of the file that `save` would write."""
    return len(_bytes(state))


def _bytes(state: State) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def load(path: Path) -> State:
    """Raises UserError when there is no readable checkpoint."""
    if not path.is_file():
        raise UserError(f"no checkpoint {path}; give a .ckpt file or the folder of a finished run")
    try:
        check_zip(path, FILE_BYTES, whole=True)
        state = torch.load(path, map_location="cpu", weights_only=True)
        _check(state)
    except Exception as error:  # any exception by a damaged zip or pickle
        why = str(error) if isinstance(error, Unreadable) else type(error).__name__
        raise UserError(f"{path} is not a readable checkpoint ({why}); train again or give another") from None
    return dict(state)


def _check(state: Any) -> None:
    """Raises Unreadable unless a checkpoint holds weights and the fields of `extra`, each of its type."""
    if _holds_meta(state):
        raise Unreadable("a tensor is on the device meta, without numbers")
    weights = state["state_dict"]
    if not all(isinstance(name, str) and _plain_tensor(value) for name, value in weights.items()):
        raise Unreadable("its weights are no plain tensors by name")
    if not isinstance(state["torch_random"], list) or not all(map(_plain_tensor, state["torch_random"])):
        raise Unreadable("its state is of another kind")
    plain = parse_json(state["plain"].encode(), "what it says", PLAIN_BYTES)
    for key in ("counters", "random", "note", "made_for"):
        if not isinstance(plain.get(key), dict):
            raise Unreadable(f"its {key} is no object")
    if not all(_number(plain["counters"].get(key)) for key in ("steps", "evals", "seconds")):
        raise Unreadable("its counters are no numbers")
    decisions = plain["made_for"].get("decisions", {})
    if not isinstance(decisions, dict) or not all(_number(choices) for choices in decisions.values()):
        raise Unreadable("its decisions are no numbers of choices by name")
    settings = said(state, "settings")
    nodes = [settings.get("algo"), *settings.values()] if isinstance(settings, dict) else [settings]
    named = all(isinstance(node, dict) and isinstance(node.get("name"), str) for node in nodes)
    if settings is not None and not (named and {*settings} <= {"encoder", "algo"}):
        raise Unreadable("its settings are not those of an encoder and an algorithm")


def _holds_meta(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return (isinstance(value, torch.Tensor) and value.is_meta) or any(map(_holds_meta, inner))


def _plain_tensor(value: Any) -> bool:
    """Whether it is a tensor of real numbers that lie in the file one by one."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return False
    return not value.is_complex() and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def newest(folder: Path) -> tuple[Path, State] | None:
    """The newest whole one of last.ckpt and previous.ckpt, with a warning when one is damaged; None without any."""
    for path in (folder / "last.ckpt", folder / "previous.ckpt"):
        if path.exists():
            try:
                state = load(path)
                if state.get(DIGEST_KEY) != digest_of(state):
                    raise UserError(f"{path} does not agree with its own digest")
                return path, state
            except UserError as error:
                warnings.warn(f"{error}; going on from an older state", stacklevel=2)
    return None
