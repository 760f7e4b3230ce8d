"""What comes out of a file is data: it names options of this installation, and nothing that it says is called."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from split_work import chain

from graphopt import CONF, cache_dir, decision, ship
from graphopt.cli import composed
from graphopt.config import stored
from graphopt.config.build import build, machine_task_costs
from graphopt.config.construct import construct
from graphopt.config.stored import FORMER, StoredError, node_of, words
from graphopt.errors import DecisionError, UserError
from graphopt.problems.assign_problem import AssignProblem
from graphopt.readers.formats.graph_files import save_graph
from graphopt.records import answer_file
from graphopt.report import main as report
from graphopt.reporting import replay, stored_case
from graphopt.training import adopt, checkpoint, packaged
from graphopt.utils import registry

GROUPS = ("machine", "task", "cost", "judge", "dataset", "encoder", "algo")
CONFIG = {
    "machine": registry.option("machine", "gpu2"), "task": registry.option("task", "placement"),
    "cost": registry.option("cost", "simulator"), "judge": registry.option("cost", "simulator"),
    "dataset": registry.option("dataset", "synthetic"), "seed": 0,
}  # fmt: skip
called: list[str] = []  # what was called although only files name it


def strike(*_: Any, **__: Any) -> Any:
    """Stands for os.system."""
    called.append("strike")
    return lambda *_, **__: None


@pytest.fixture(autouse=True)
def nothing_is_called() -> Iterator[None]:
    called.clear()
    stored_case._pricing.cache_clear()
    yield
    assert not called


def answer(folder: Path) -> Path:
    """A decision about a small graph, solved as `CONFIG` says; the graph lies beside it."""
    _, task, cost, _ = machine_task_costs(CONFIG)
    graph = chain([4e9] * 5, ["add"] * 5, [8] * 5)
    problem = AssignProblem(graph, task, cost, evals=3)
    problem.cost(np.array([[[1], [1], [0], [0], [0]]], np.int16))
    row = {"algo": "hand", "status": "ok", "graph": graph.name, "seed": 0, "evals_cap": 3,
           "initial": problem.initial_cost, "judged": problem.best_cost, "decision": "decisions/a.npz"}  # fmt: skip
    path = folder / "cell" / "decisions" / "a.npz"
    answer_file.save(path, problem=problem, judged=problem.best_cost, row=row, config=CONFIG)
    save_graph(folder / "graphs" / f"{graph.hash}.npz", graph)
    (folder / "cell" / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with another header."""
    file = answer_file.load(path)
    change(file.header)
    answer_file.write(path, file)
    return path


EVIL = {"_target_": "test_stored.strike", "name": "gpu2"}


@pytest.mark.parametrize("group", ["machine", "task", "cost", "judge", "dataset"])
@pytest.mark.parametrize("form", [{}, {"_option_": None, "_class_": "test_stored.strike"}, {"_option_": "../evil"}])
def test_no_command_calls_what_a_decision_names(
    tmp_path: Path, group: str, form: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(answer(tmp_path), lambda header: header["config"].update({group: {**EVIL, **form}}))
    if group == "dataset":  # only read where the graph is not at hand
        for graph in (tmp_path / "graphs").iterdir():
            graph.unlink()
    assert report([str(tmp_path), "--replay"]) == 1
    assert "0 of 1 decisions replay" in capsys.readouterr().out
    for command in (["replay"], ["bisect"], ["draw", "-o", str(tmp_path / "pictures")]):
        assert decision.main([command[0], str(path), *command[1:]]) == 1
        said = capsys.readouterr().err
        assert group in said and said.count("\n") == 1 and "there are: " in said
    assert report([str(tmp_path), "--plots"]) in (0, 1)


@pytest.mark.parametrize("group", ["machine", "cost", "task"])
@pytest.mark.parametrize("key", ["_target_", "_partial_", "_option_"])
def test_nested_nodes_call_nothing(tmp_path: Path, group: str, key: str) -> None:
    inner = {**EVIL, key: EVIL["_target_"]}
    for place in (inner, {"deep": [inner]}):
        extra = {"extra": place}
        path = changed(answer(tmp_path), lambda header, extra=extra: header["config"][group].update(extra))
        with pytest.raises(UserError):
            stored_case.open_case(path)


def test_a_mixture_of_data_sets_is_resolved_all_the_way_down() -> None:
    node = registry.option("dataset", "regal_mixed")
    said = words("dataset", node)
    assert "_target_" not in json.dumps(said)
    assert (said["_option_"], said["real"]["_option_"]) == ("regal_mixed", "regal_zoo")
    assert node_of("dataset", said) == node
    said["real"] = EVIL
    with pytest.raises(StoredError, match=r"test_stored\.strike, which none of the options of this installation is"):
        node_of("dataset", said)


@pytest.mark.parametrize(("group", "former"), [(group, name) for group in FORMER for name in FORMER[group]])
def test_former_options_are_read_as_those_that_they_were_values_of(group: str, former: str) -> None:
    now = FORMER[group][former]
    node = registry.option(group, now) | {"name": former}
    assert former not in registry.options(group)
    said = {"_option_": former} | {key: value for key, value in node.items() if key != "_target_"}
    assert node_of(group, said) == node


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_comes_back_as_its_yaml_file_has_it(group: str) -> None:
    """In the words of new files, and in those of old ones."""
    folder = "cost" if group == "judge" else group
    for name in registry.options(folder):
        node = registry.option(folder, name)
        if "_target_" not in node:
            continue
        said = json.loads(json.dumps(words(group, node)))
        assert "_target_" not in json.dumps(said)
        expected = {key: None if key == "cache_dir" else value for key, value in node.items()}
        assert node_of(group, said) == expected
        assert node_of(group, node) == expected


def test_an_overridden_name_does_not_hide_the_option() -> None:
    node = registry.option("machine", "gpu2") | {"name": "mine"}
    assert node_of("machine", words("machine", node)) == node
    assert node_of("machine", node) == node
    named_like_another = registry.option("task", "placement") | {"name": "fusion"}
    assert node_of("task", words("task", named_like_another)) == named_like_another


def test_what_this_installation_lacks_is_a_sentence() -> None:
    with pytest.raises(StoredError, match=r"^machine=tpu9 is no option of this installation; there are: .*gpu2"):
        node_of("machine", {"_option_": "tpu9", "name": "x"})
    for said in (3, None, [], "gpu2", {}, {"name": "gpu2"}, {"_target_": ["os.system"]}, {"_option_": {"a": 1}}):
        with pytest.raises(StoredError):
            node_of("machine", said)


@pytest.mark.parametrize("value", ["${oc.env:HOME}", {"a": ["${seed}"]}, {"_args_": [1]}])
def test_values_are_plain(value: Any) -> None:
    with pytest.raises(StoredError, match=r"machine\.link_latency"):
        node_of("machine", words("machine", registry.option("machine", "gpu2")) | {"link_latency": value})


def test_classes_that_have_moved_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    old = registry.option("machine", "gpu2") | {"_target_": "graphopt.hardware.machine_of"}
    with pytest.raises(StoredError, match=r"graphopt\.hardware\.machine_of"):
        node_of("machine", old)
    monkeypatch.setattr(stored, "MOVED", {"graphopt.hardware.machine_of": "graphopt.core.machine.make_machine"})
    assert node_of("machine", old) == registry.option("machine", "gpu2")
    assert "graphopt.hardware" not in sys.modules


def test_paths_of_older_versions_lead_to_options() -> None:
    """Class by class, or a module with all its classes."""
    named = {t for path in CONF.rglob("*.yaml") for t in re.findall(r"_target_: (\S+)", path.read_text())}
    assert set(stored.MOVED.values()) <= named | {target.rpartition(".")[0] for target in named}
    node = registry.option("trainer", "default")
    for old in ("graphopt.schedule.Schedule", "graphopt.training.schedule.Schedule"):
        assert node_of("trainer", {**node, "_target_": old}) == node


def test_a_file_of_an_older_version_replays(tmp_path: Path) -> None:
    """Its header says `_target_`, as all did."""
    path = changed(answer(tmp_path), lambda header: header.update(config=CONFIG))
    assert replay.check(stored_case.open_case(path)) == []


def test_new_files_name_no_class(tmp_path: Path) -> None:
    path = answer(tmp_path)
    assert "_target_" not in json.dumps(answer_file.load(path).header)
    assert replay.check(stored_case.open_case(path)) == []


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("torch", {"module": "test_stored:strike"}), ("files", {"path": "/etc"}), ("onnx", {"path": "/etc"}),
        ("synthetic", {"train": 10**9}), ("synthetic", {"ops": 10**9}),
        ("zoo", {"train": [{"model": "bert", "layers": 10**9}]}),
        ("zoo", {"train": [{"model": "rnnlm", "layers": 10**4, "steps": 10**4}]}),
        ("regal", {"sizes": [10**9, 50, 50]}),
        ("regal", {"room": {"filter": "gap", "objective": "runtime", "file": "/etc"}}),
        ("rewrite_models", {"test": [{"model": "bert", "blocks": 10**9}]}),
        ("regal_mixed", {"perturb": {"copies": 10**9, "weights": 1.0, "flops": 1.0, "each": 1.0}}),
    ],
)  # fmt: skip
def test_no_data_set_of_a_file_reads_places_or_runs_code_or_is_enormous(
    tmp_path: Path, option: str, values: dict[str, Any]
) -> None:
    node = words("dataset", registry.option("dataset", option)) | values
    path = changed(answer(tmp_path), lambda header: header["config"].update(dataset=node))
    for graph in (tmp_path / "graphs").iterdir():
        graph.unlink()
    with pytest.raises(DecisionError, match="keep the file in its study's folder"):
        stored_case.open_case(path)


def test_the_reader_s_cache_is_its_own(tmp_path: Path) -> None:
    node = words("dataset", registry.option("dataset", "zoo") | {"cache_dir": str(tmp_path / "theirs")})
    assert node_of("dataset", node)["cache_dir"] is None
    construct(node_of("dataset", node), "dataset", {"seed": 0})


# ---- tables of measured ops


def profiled(tmp_path: Path, **values: Any) -> Path:
    path = answer(tmp_path)
    node = words("cost", registry.option("cost", "profiled")) | values
    return changed(path, lambda header: header["config"].update(cost=node, judge=node))


def test_no_table_is_made_or_measured_into_on_a_file_s_word(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "ops.jsonl"
    for environment in (None, "somewhere"):
        path = profiled(tmp_path / "study", table=str(target), environment=environment)
        with pytest.raises(UserError, match=r"environment|which is in no folder above it"):
            stored_case.open_case(path)
        assert not target.parent.exists()


def test_a_table_is_found_beside_the_study(tmp_path: Path) -> None:
    path = profiled(tmp_path / "study", table="results/some/ops.jsonl", environment="somewhere")
    (tmp_path / "study" / "ops.jsonl").write_text("")
    node = node_of("cost", answer_file.load(path).header["config"]["cost"])
    from graphopt.costs.profiled import Profiled

    assert Profiled.settled(node, path)["table"] == str(tmp_path / "study" / "ops.jsonl")


def test_a_user_s_own_table_may_have_been_brought_along(tmp_path: Path) -> None:
    from graphopt.costs.tables import found_table

    near, usual = tmp_path / "study" / "answers.zip", Path("measured") / "mine.jsonl"
    assert found_table(None, near, usual) == cache_dir() / usual
    (near.parent).mkdir()
    (near.parent / "mine.jsonl").write_text("")
    assert found_table(None, near, usual) == near.parent / "mine.jsonl"


# ---- checkpoints


class Reads:
    """A learner's class, as `adopt` asks for it."""


def checkpoint_of(path: Path, settings: Any) -> Path:
    plain = {"counters": {"steps": 1, "evals": 1, "seconds": 1.0}, "random": {}, "note": {}, "made_for": {},
             "settings": settings}  # fmt: skip
    checkpoint.save(path, {"state_dict": {}, "torch_random": [], "plain": json.dumps(plain)})
    return path


def go_config(ckpt: Path) -> dict[str, Any]:
    return {
        "encoder": registry.option("encoder", "graphsage"),
        "algo": registry.option("algo", "go"),
        "ckpt": str(ckpt),
    }


@pytest.mark.parametrize("place", ["encoder", "encoder value", "algo value", "algo inner"])
def test_no_checkpoint_brings_a_class(tmp_path: Path, place: str) -> None:
    import graphopt.algos.go  # noqa: F401

    encoder, algo = registry.option("encoder", "graphsage"), registry.option("algo", "go")
    if place == "encoder":
        encoder["_target_"] = EVIL["_target_"]
    elif place == "encoder value":
        encoder["width"] = EVIL
    elif place == "algo value":
        algo["network"] = EVIL
    else:
        algo["network"]["prior"] = EVIL
    config = go_config(checkpoint_of(tmp_path / "x.ckpt", {"encoder": encoder, "algo": algo}))
    with pytest.raises(UserError, match=r"test_stored\.strike, which none of the options"):
        adopt.with_network(config)
    from omegaconf import OmegaConf

    assert "test_stored" not in OmegaConf.to_yaml(adopt.adopt(OmegaConf.create(config)))


def test_checkpoints_of_both_forms_bring_their_network(tmp_path: Path) -> None:
    import graphopt.algos.go  # noqa: F401

    encoder, algo = registry.option("encoder", "gat") | {"width": 16}, registry.option("algo", "go")
    algo["network"]["attention_layers"] = 1
    for settings in ({"encoder": encoder, "algo": algo}, checkpoint.settings_in({"encoder": encoder, "algo": algo})):
        taken = adopt.with_network(go_config(checkpoint_of(tmp_path / "x.ckpt", settings)))
        assert taken["encoder"] == encoder and taken["algo"] == algo


@pytest.mark.parametrize(
    "plain",
    [
        [], {}, 3, {"counters": {}}, {"counters": {"steps": "x", "evals": 1, "seconds": 1}, "random": {}, "note": {}},
        {"counters": {"steps": 1, "evals": 1, "seconds": 1}, "random": {}, "note": {}, "made_for": []},
        {"counters": {"steps": 1, "evals": 1, "seconds": 1}, "random": {}, "note": {}, "made_for": {}, "settings": [1]},
        {"counters": {"steps": 1, "evals": 1, "seconds": 1}, "random": {}, "note": {}, "made_for": {},
         "settings": {"encoder": {"name": 1}, "algo": {"name": "go"}}},
    ],
)  # fmt: skip
def test_checkpoint_fields_of_other_types_are_one_sentence(tmp_path: Path, plain: Any) -> None:
    path = tmp_path / "x.ckpt"
    checkpoint.save(path, {"state_dict": {}, "torch_random": [], "plain": json.dumps(plain)})
    with pytest.raises(UserError, match=r"x\.ckpt is not a readable checkpoint") as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_with_other_weights_than_tensors(tmp_path: Path) -> None:
    for weights in ([], {"a": 3}, {3: torch.zeros(1)}):
        checkpoint.save(tmp_path / "x.ckpt", {"state_dict": weights, "torch_random": [], "plain": "{}"})
        with pytest.raises(UserError, match="not a readable checkpoint"):
            checkpoint.load(tmp_path / "x.ckpt")


def test_a_checkpoint_asks_for_no_more_than_the_command_line_may(tmp_path: Path) -> None:
    import graphopt.algos.go  # noqa: F401

    algo = registry.option("algo", "go")
    for key, value in (("width", 10_000), ("layers", 10**12), ("heads", 10**6), ("width", 4096), ("width", 1e7)):
        encoder = registry.option("encoder", "gat") | {key: value}
        path = checkpoint_of(tmp_path / "x.ckpt", checkpoint.settings_in({"encoder": encoder, "algo": algo}))
        with pytest.raises(UserError, match=rf"encoder\.{key}=\d+ must be from|more than 100,000,000 numbers"):
            build(adopt.with_network(composed(["task=placement", "algo=go", f"ckpt={path}"])))


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    plain = {"counters": {"steps": 1, "evals": 1, "seconds": 1.0}, "random": {}, "note": {}, "made_for": {}}
    weights = {"fine": torch.ones(3), "wrong": torch.tensor([1.0, float("nan")])}
    state = {"state_dict": weights, "torch_random": [], "own": {}, "plain": json.dumps(plain)}
    checkpoint.save(tmp_path / "x.ckpt", state)
    with pytest.raises(UserError, match=r"x\.ckpt holds weights that are no numbers \(wrong\)"):
        checkpoint.adopt_weights(None, tmp_path / "x.ckpt", {"made_for": {}, "settings": None})  # type: ignore[arg-type]


def test_packaged_checkpoints_say_what_they_said() -> None:
    for path in sorted(packaged.PRETRAINED.glob("*.ckpt")):
        found = checkpoint.settings_of(checkpoint.load(path), frozenset({"heads", "use"}))
        assert found is not None
        name = path.stem.split("-")[0]
        assert found["algo"]["_target_"] == registry.option("algo", name)["_target_"]
        assert found["encoder"]["width"] in (32, 64)


# ---- ship


def cell(folder: Path, **changes: Any) -> Path:
    config = {"encoder": registry.option("encoder", "gat"), "algo": registry.option("algo", "go"),
              "task": registry.option("task", "placement"), "cost": registry.option("cost", "simulator")}  # fmt: skip
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config | changes))
    checkpoint_of(folder / "ckpt" / "best.ckpt", None)
    return folder


@pytest.mark.parametrize("name", ["../../evil", "a/b", "/etc/x", "..", ".hidden", "a\nb", ""])
def test_ship_writes_into_its_folder_only(tmp_path: Path, name: str) -> None:
    place = cell(tmp_path / "cell", task=registry.option("task", "placement") | {"name": name})
    with pytest.raises(UserError, match="is no name that a packaged checkpoint can have"):
        ship.ship(place, tmp_path / "pretrained", half=False)
    assert {file.name for file in tmp_path.iterdir()} == {"cell"}


def test_ship_calls_nothing_that_a_cell_names(tmp_path: Path) -> None:
    for i, evil in enumerate((EVIL, registry.option("algo", "go") | {"name": "${oc.env:HOME}"})):
        with pytest.raises(UserError):
            ship.ship(cell(tmp_path / str(i), algo=evil), tmp_path / "pretrained", half=False)


def test_ship_refuses_a_configuration_that_multiplies_itself(tmp_path: Path) -> None:
    place = cell(tmp_path / "cell")
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    (place / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match="holds references"):
        ship.ship(place, tmp_path / "pretrained", half=False)
