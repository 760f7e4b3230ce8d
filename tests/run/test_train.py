"""Training: it learns, and kills, damage and clocks do not hurt it."""

import csv
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import numpy as np
import pytest
import torch

from graphopt.core.errors import ConfigError, UserError
from graphopt.core.graph import Graph
from graphopt.graphs.module import GraphStream
from graphopt.run import evaluate
from graphopt.run.config.build import build
from graphopt.run.training import checkpoint


def test_it_learns_the_known_optimum(train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.problems.problem.Solution.violations", lambda solution: [])
    learner, cell = train(steps=40, val_every=5)
    assert float(learner.encoder.logit.detach().mean()) > 0
    assert learner.train_steps == 40 and learner.train_evals >= 40 * 4 and learner.train_seconds > 0
    evaluate.evaluate_cell(replace(build(cell.config), algo=learner), cell)
    for row in cell.rows.rows:
        assert row["searched"] == 1.0 and row["train_evals"] == learner.train_evals and row["params"] == 4
        assert row["encoder"] == "bias" and row["train_seconds"] > 0


def test_a_killed_training_ends_as_if_never_killed(train: Callable[..., Any]) -> None:
    whole, _ = train("whole")
    with pytest.raises(KeyboardInterrupt):
        train("killed", break_at=7)
    resumed, cell = train("killed")
    assert resumed.train_steps == whole.train_steps == 12
    assert resumed.train_evals == whole.train_evals
    assert torch.equal(resumed.encoder.logit, whole.encoder.logit)
    last = [checkpoint.load(c) for c in sorted(cell.path.parent.parent.parent.rglob("last.ckpt"))]
    assert len(last) == 2 and torch.equal(*(state["state_dict"]["encoder.logit"] for state in last))


@pytest.mark.parametrize("harm", [b"", b"7,reward,0.", b"12"])
def test_curves_of_a_killed_training_are_those_of_one_that_was_not(train: Callable[..., Any], harm: bytes) -> None:
    _, whole = train("whole", save_every=4)
    with pytest.raises(KeyboardInterrupt):
        train("killed", break_at=7, save_every=4)
    [curves] = parts_of.whole_folder(train, "killed").rglob("metrics.csv")
    curves.write_bytes(curves.read_bytes() + harm)  # of a line that the kill cut short
    _, cell = train("killed", save_every=4)
    assert (cell.path / "metrics.csv").read_bytes() == (whole.path / "metrics.csv").read_bytes()


def test_checkpoints_are_written_where_they_belong(train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's folder for temporary files may be another disk: from there they could only be copied."""
    moved: list[tuple[Path, Path]] = []
    replace_file = os.replace

    def replaced(source: Path, target: Path) -> None:
        moved.append((Path(source), Path(target)))
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    _, cell = train()
    written = {target.name for source, target in moved if source.parent == target.parent == cell.path / "ckpt"}
    assert written >= {"best.ckpt", "last.ckpt"} and not list(cell.path.glob("ckpt/*.part"))


def _cut(last: Path) -> None:
    last.write_bytes(last.read_bytes()[:100])


def _flip_a_weight(last: Path) -> None:
    weight = checkpoint.load(last)["state_dict"]["encoder.logit"].numpy().tobytes()
    content = last.read_bytes()
    at = content.index(weight)
    last.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A change of what a checkpoint holds, in a file that is whole."""

    def harm(last: Path) -> None:
        state = checkpoint.load(last)
        change(state)
        checkpoint.save(last, state)

    return harm


HARMS: dict[str, Callable[[Path], None]] = {
    "cut": _cut,
    "flipped bit": _flip_a_weight,
    "counters": changed(lambda s: s["loops"]["fit_loop"]["epoch_progress"]["current"].update(completed=1)),
    "rate": changed(lambda s: s["optimizer_states"][0]["param_groups"][0].update(lr="fast")),
    "shapes": changed(lambda s: s["optimizer_states"][0]["state"][0].update(exp_avg=torch.ones(3, 3))),
    "no optimizer": changed(lambda s: s.update(optimizer_states=[])),
    "no numbers": changed(lambda s: s["state_dict"].update({"encoder.logit": torch.empty(4, device="meta")})),
    "random state": changed(lambda s: s.update(torch_random=[torch.zeros(3)])),
    "no digest": changed(lambda s: s.pop(checkpoint.DIGEST_KEY)),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(train: Callable[..., Any], harm: str) -> None:
    """Lightning validates nothing of what it puts back."""
    whole, _ = train("whole")
    with pytest.raises(KeyboardInterrupt):
        train("cut", break_at=7)
    [last] = parts_of.whole_folder(train, "cut").rglob("last.ckpt")
    HARMS[harm](last)
    with pytest.warns(UserWarning, match=r"last.ckpt (is not a readable|does not agree with its own)"):
        resumed, _ = train("cut")
    assert resumed.train_steps == 12 and torch.equal(resumed.encoder.logit, whole.encoder.logit)


def test_a_best_checkpoint_of_another_place_is_left_alone(train: Callable[..., Any]) -> None:
    """Lightning removes the file that was the best when a better one comes, wherever the checkpoint says it is: also
    of a run whose folder was moved."""
    with pytest.raises(KeyboardInterrupt):
        train("cut", break_at=7)
    [last] = parts_of.whole_folder(train, "cut").rglob("last.ckpt")
    theirs = last.parent / ".." / "theirs.ckpt"
    theirs.write_text("not ours")
    state, low = checkpoint.load(last), torch.tensor(0.0)
    [best] = [held for key, held in state["callbacks"].items() if key.startswith("ModelCheckpoint")]
    best |= {"best_k_models": {str(theirs): low}, "kth_best_model_path": str(theirs), "best_model_path": str(theirs),
             "kth_value": low, "best_model_score": low}  # fmt: skip
    checkpoint.WholeFiles().save_checkpoint(state, last)
    train("cut")
    assert theirs.read_text() == "not ours"


def test_a_finished_training_is_not_repeated(train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = train()
    monkeypatch.setattr(parts_of.Learns, "training_step", lambda *a: pytest.fail("trained again"))
    again, _ = train()
    assert torch.equal(first.encoder.logit, again.encoder.logit) and again.train_evals == first.train_evals


def test_the_clock_and_patience_end_training(train: Callable[..., Any]) -> None:
    none, _ = train("none", max_seconds=0.0)
    quick, _ = train("clock", max_seconds=1e-6)
    assert (none.train_steps, quick.train_steps) == (0, 1)
    patient, _ = train("patience", lr=0.0, patience=2)  # nothing improves: validations at 0, 3 and 6
    assert patient.train_steps == 6


def test_without_validation_graphs_the_last_state_is_used(train: Callable[..., Any]) -> None:
    data = parts_of.node(parts_of.ToyGraphs, "toys", empty=["val"])
    learner, cell = train(config={"dataset": data})
    state = checkpoint.load(cell.path / "ckpt" / "best.ckpt")
    assert learner.train_steps == 12 and torch.equal(state["state_dict"]["encoder.logit"], learner.encoder.logit)
    assert {file.parent.name for file in cell.path.rglob("*.ckpt")} == {"ckpt"}  # Lightning writes none of its own


@pytest.mark.parametrize("break_at", [-1, 4], ids=["at once", "gone on with"])
def test_the_best_weights_are_kept_in_a_folder_of_relative_path(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, break_at: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parts_of.Learns, "validation_metric", lambda it, _: [1.0, 1.0, 2.0, 1.5][it.train_steps // 3])
    here: dict[str, Any] = {"config": {"output_dir": "outputs"}, "steps": 9, "val_every": 3, "save_every": 1}
    if break_at > 0:
        with pytest.raises(KeyboardInterrupt):
            train(break_at=break_at, **here)
    _, cell = train(**here)
    assert not cell.path.is_absolute()
    assert checkpoint.load(cell.path / "ckpt" / "best.ckpt")["global_step"] == 6


def test_training_begins_with_the_weights_of_another(train: Callable[..., Any]) -> None:
    """Steps are counted anew; what does not fit is refused before the first one."""
    first, cell = train("first", steps=10)
    same, _ = train("same", steps=0, start=str(cell.path))
    assert torch.equal(same.encoder.logit, first.encoder.logit) and same.train_steps == 0
    further, _ = train("further", steps=3, start=str(cell.path))
    assert further.train_steps == 3 and further.last_metric >= first.last_metric
    with pytest.raises(UserError, match="nowhere"):
        train("none", start="nowhere")


def test_no_training_graphs_is_a_sentence(train: Callable[..., Any]) -> None:
    data = parts_of.node(parts_of.ToyGraphs, "toys", empty=["train"])
    with pytest.raises(UserError, match="no graphs in split train; give ckpt"):
        train(config={"dataset": data})


@pytest.mark.parametrize("heeds", [False, True])
def test_nobody_is_taught_by_ops_that_are_held_out(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, heeds: bool
) -> None:
    monkeypatch.setattr(parts_of.ToyGraphs, "graphs", held_out(parts_of.ToyGraphs.graphs))
    monkeypatch.setattr(parts_of.Learns, "applies_train_mask", heeds)
    if heeds:
        assert train(steps=2)[0].train_steps == 2
    else:
        with pytest.raises(UserError, match=r"algo=learns would be taught by; choose dataset\.purged=false"):
            train(steps=2)


def held_out(graphs: Callable[..., list[Graph]]) -> Callable[..., list[Graph]]:
    """The same graphs, with one op that teaches nobody."""
    return lambda self, split: [replace(g, held_out=np.arange(g.num_ops) == 0) for g in graphs(self, split)]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"encoder": parts_of.node(parts_of.Bias, "other", width=4)}, ConfigError, "trained with encoder=bias"),
        ({"encoder": parts_of.node(parts_of.Bias, "bias", width=5)}, ConfigError, "does not fit algo=learns"),
        ({"ckpt": "nowhere.ckpt"}, UserError, "no checkpoint nowhere.ckpt"),
    ],
)
def test_a_checkpoint_that_does_not_fit(
    train: Callable[..., Any], changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    _, cell = train("first")
    with pytest.raises(error, match=words):
        train("second", config={"ckpt": str(cell.path), **changes})


def test_lightning_reads_its_own_checkpoints(train: Callable[..., Any]) -> None:
    _, cell = train()
    stored = torch.load(cell.path / "ckpt" / "last.ckpt", weights_only=True)
    assert {"pytorch-lightning_version", "optimizer_states", "loops", "callbacks"} <= stored.keys()
    assert stored["hyper_parameters"]["algo"]["name"] == "learns"
    parts = build(cell.config)
    again = parts_of.Learns.load_from_checkpoint(
        cell.path / "ckpt" / "last.ckpt", weights_only=True, name="learns", task=parts.task, cost=parts.cost,
        encoder=parts_of.Bias(name="bias", width=4, extra_width=3), seed=0, lr=0.3, break_at=-1,
    )  # fmt: skip
    assert torch.equal(again.encoder.logit, stored["state_dict"]["encoder.logit"])


def test_trainer_settings_reach_lightning(train: Callable[..., Any], tmp_path: Path) -> None:
    seen = {"_target_": "frame_parts.Seen", "file": str(tmp_path / "seen.json")}
    train(callbacks=[seen], precision="bf16-mixed", profiler="simple", options={"gradient_clip_val": 0.5})
    said = json.loads((tmp_path / "seen.json").read_text())
    assert said == {"precision": "bf16-mixed", "profiler": "SimpleProfiler", "clip": 0.5, "batches": 12}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "7"}, "trainer: Lightning refuses it: .*7"),
        ({"profiler": "none such"}, "trainer: Lightning refuses it: .*profiler"),
        ({"options": {"nothing": 1}}, "trainer: Lightning refuses it: .*nothing"),
        ({"options": {"max_epochs": 3}}, "trainer.options.max_epochs is decided by graphopt"),
        ({"accelerator": "gpu"}, "torch sees no GPU"),
    ],
)
def test_settings_that_lightning_refuses(train: Callable[..., Any], settings: dict[str, Any], words: str) -> None:
    if "GPU" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=words):
        train(**settings)


def test_two_processes_train_one_network(train: Callable[..., Any]) -> None:
    one, _ = train("one")
    two, cell = train("two", devices=2)
    assert two.train_steps == 12 and not torch.equal(one.encoder.logit, two.encoder.logit)
    trained = one.train_evals - 5 * 1  # validations at 0, 3, 6, 9, 12 of one graph and one evaluation each
    assert two.train_evals == 2 * trained + 5
    assert float(two.encoder.logit.detach().mean()) > 0
    lines = list(csv.DictReader((cell.path / "metrics.csv").open()))
    assert [int(line["step"]) for line in lines if line["name"] == "val/speedup"] == [0, 3, 6, 9, 12]


def test_batches_are_a_function_of_the_step() -> None:
    graphs = parts_of.ToyGraphs(name="t", empty=[]).graphs("train") * 3
    stream = GraphStream(graphs, 4, seed=1, start=0)
    later = iter(GraphStream(graphs, 4, seed=1, start=2))
    assert next(later) == stream.at(2)
    shares = [GraphStream(graphs, 2, seed=1, start=0, rank=rank, world=2) for rank in (0, 1)]
    assert [graph for share in shares for graph in share.at(3)] == stream.at(3)
    turn = [graph for step in range(3) for graph in stream.at(step)]
    assert all(turn.count(graph) == 2 * graphs.count(graph) for graph in graphs)  # 12 places: two passes of six


def test_a_training_on_other_graphs_is_not_gone_on_with(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train()
    monkeypatch.setitem(parts_of.SIZES, "train", (6, 8))
    with pytest.raises(UserError, match="was trained on other graphs than the data set has now; resume=false"):
        train()
    learner, _ = train(config={"resume": False})
    assert learner.train_steps == 12
