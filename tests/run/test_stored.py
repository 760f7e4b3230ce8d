"""What comes out of a file is data: it names options of this installation, and nothing that it says is called."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_files import CONFIG, EVIL, answer, changed, nothing_is_called  # noqa: F401

from graphopt import CONF, cache_dir
from graphopt import load as load_answer
from graphopt.core.errors import DecisionError, UserError
from graphopt.core.utils import registry
from graphopt.report import decision
from graphopt.report.command import main as report
from graphopt.run.config import stored
from graphopt.run.config.stored import FORMER, StoredError, node_of, words
from graphopt.run.records import answer_file

GROUPS = ("machine", "task", "cost", "judge", "dataset", "encoder", "algo")


@pytest.mark.parametrize("group", ["machine", "task", "cost", "judge", "dataset"])
@pytest.mark.parametrize("form", [{}, {"_option_": None, "_class_": "hostile_files.strike"}, {"_option_": "../evil"}])
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


def test_a_mixture_of_data_sets_is_resolved_all_the_way_down() -> None:
    node = registry.option("dataset", "regal_mixed")
    said = words("dataset", node)
    assert "_target_" not in json.dumps(said)
    assert (said["_option_"], said["real"]["_option_"]) == ("regal_mixed", "zoo")
    assert node_of("dataset", said) == node
    said["real"] = EVIL
    with pytest.raises(StoredError, match=r"hostile_files\.strike, which none of the options of this installation is"):
        node_of("dataset", said)


@pytest.mark.parametrize(("group", "former"), [(group, name) for group in FORMER for name in FORMER[group]])
def test_former_options_are_read_as_those_that_they_were_values_of(group: str, former: str) -> None:
    now = FORMER[group][former]
    node = registry.option(group, now) | {"name": former}
    node |= {"environment": "there"} if "environment" in node else {}
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
        node |= {"environment": "there"} if "environment" in node else {}
        said = json.loads(json.dumps(words(group, node)))
        assert "_target_" not in json.dumps(said)
        if name == "programs":  # its entries name libraries' models, with settings of these
            with pytest.raises(UserError, match="would be run"):
                node_of(group, said)
            continue
        expected = {key: None if key == "cache_dir" else value for key, value in node.items()}
        assert node_of(group, said) == expected
        assert node_of(group, node) == expected


def test_tiling_files_of_older_versions_count_a_slice_once_for_every_operand() -> None:
    """They were priced so; new ones say which reading they are of."""
    node = registry.option("task", "tiling")
    said = words("task", node)
    assert said["shared_slices"] == "once"
    former = {key: value for key, value in said.items() if key != "shared_slices"}
    assert node_of("task", former) == {**node, "shared_slices": "per_operand"}
    assert node_of("task", said) == node


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
    old = registry.option("machine", "gpu2") | {"_target_": "graphopt.elsewhere.machine_of"}
    with pytest.raises(StoredError, match=r"graphopt\.elsewhere\.machine_of"):
        node_of("machine", old)
    monkeypatch.setattr(stored, "MOVED", {"graphopt.elsewhere.machine_of": "graphopt.core.machine.make_machine"})
    assert node_of("machine", old) == registry.option("machine", "gpu2")
    assert "graphopt.elsewhere" not in sys.modules


def test_paths_of_older_versions_lead_to_options() -> None:
    """Class by class, or a module or a package with all its classes."""
    named = {t for path in CONF.rglob("*.yaml") for t in re.findall(r"_target_: (\S+)", path.read_text())}
    parts = [target.split(".") for target in named]
    assert set(stored.MOVED.values()) <= {".".join(names[:end]) for names in parts for end in range(len(names) + 1)}
    for group, option in (("machine", "gpu2"), ("algo", "local")):
        node = registry.option(group, option)
        old = node["_target_"].replace(".core.", ".").replace(".walks.", ".")
        assert old != node["_target_"] and node_of(group, {**node, "_target_": old}) == node
    with pytest.raises(StoredError, match="files say nothing of trainer"):
        node_of("trainer", registry.option("trainer", "default"))


def test_new_files_name_no_class_and_those_of_older_versions_replay(tmp_path: Path) -> None:
    """Their headers say `_target_`."""
    path = answer(tmp_path)
    assert "_target_" not in json.dumps(answer_file.load(path).header) and load_answer(path).check() == []
    assert load_answer(changed(path, lambda header: header.update(config=CONFIG))).check() == []


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("torch", {"module": "hostile_files:strike"}), ("files", {"path": "/etc"}), ("onnx", {"path": "/etc"}),
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
        load_answer(path)


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
            load_answer(path)
        assert not target.parent.exists()


def test_a_table_is_found_beside_the_study(tmp_path: Path) -> None:
    path = profiled(tmp_path / "study", table="results/some/ops.jsonl", environment="somewhere")
    (tmp_path / "study" / "ops.jsonl").write_text("")
    node = node_of("cost", answer_file.load(path).header["config"]["cost"], path)
    assert node["table"] == str(tmp_path / "study" / "ops.jsonl")


def test_a_user_s_own_table_may_have_been_brought_along(tmp_path: Path) -> None:
    from graphopt.hardware.measure.price_table import found_table

    near, usual = tmp_path / "study" / "answers.zip", Path("measured") / "mine.jsonl"
    assert found_table(None, near, usual) == cache_dir() / usual
    (near.parent).mkdir()
    (near.parent / "mine.jsonl").write_text("")
    assert found_table(None, near, usual) == near.parent / "mine.jsonl"
