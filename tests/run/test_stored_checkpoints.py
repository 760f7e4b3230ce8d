"""What comes out of a checkpoint is data, as of any file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hostile_files import EVIL, checkpoint_of, nothing_is_called  # noqa: F401

from graphopt.core.cli import composed
from graphopt.core.errors import UserError
from graphopt.core.utils import registry
from graphopt.run import ship
from graphopt.run.config.build import build
from graphopt.run.training import adopt, checkpoint


def go_config(ckpt: Path) -> dict[str, Any]:
    return {
        "encoder": registry.option("encoder", "graphsage"),
        "algo": registry.option("algo", "go"),
        "ckpt": str(ckpt),
    }


def test_checkpoints_of_both_forms_bring_their_network(tmp_path: Path) -> None:
    encoder, algo = registry.option("encoder", "gat") | {"width": 16}, registry.option("algo", "go")
    algo["network"]["attention_layers"] = 1
    for settings in ({"encoder": encoder, "algo": algo}, checkpoint.settings_in({"encoder": encoder, "algo": algo})):
        taken = adopt.with_network(go_config(checkpoint_of(tmp_path / "x.ckpt", settings)))
        assert taken["encoder"] == encoder and taken["algo"] == algo


FINE = {"counters": {"steps": 1, "evals": 1, "seconds": 1.0}, "random": {}, "note": {}, "made_for": {}}


@pytest.mark.parametrize(
    "plain",
    [
        [], {}, 3, {"counters": {}}, {**FINE, "counters": {"steps": "x", "evals": 1, "seconds": 1}},
        {**FINE, "made_for": []}, {**FINE, "settings": [1]},
        {**FINE, "settings": {"encoder": {"name": 1}, "algo": {"name": "go"}}},
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
    algo = registry.option("algo", "go")
    for key, value in (("width", 10_000), ("layers", 10**12), ("heads", 10**6), ("width", 4096), ("width", 1e7)):
        encoder = registry.option("encoder", "gat") | {key: value}
        path = checkpoint_of(tmp_path / "x.ckpt", checkpoint.settings_in({"encoder": encoder, "algo": algo}))
        with pytest.raises(UserError, match=rf"encoder\.{key}=\d+ must be from|more than 100,000,000 numbers"):
            build(adopt.with_network(composed(["task=placement", "algo=go", f"ckpt={path}"])))


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    weights = {"fine": torch.ones(3), "wrong": torch.tensor([1.0, float("nan")])}
    state = {"state_dict": weights, "torch_random": [], "own": {}, "plain": json.dumps(FINE)}
    checkpoint.save(tmp_path / "x.ckpt", state)
    with pytest.raises(UserError, match=r"x\.ckpt holds weights that are no numbers \(wrong\)"):
        checkpoint.adopt_weights(None, tmp_path / "x.ckpt", {"made_for": {}, "settings": None})  # type: ignore[arg-type]


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


def test_an_algorithm_that_an_experiment_calls_otherwise_finds_the_policy_of_its_option() -> None:
    node = registry.option("algo", "xrlflow") | {"name": "one_policy"}
    options = (("encoder", "graphsage"), ("task", "rewrite"), ("cost", "torch"))
    config = {group: registry.option(group, name) for group, name in options} | {"algo": node, "ckpt": "pretrained"}
    assert adopt.packaged_name(config) == "xrlflow-rewrite-runtime.ckpt"
    assert adopt.with_network(config)["algo"] == node | {"additive": "roofline"}
    of_several = registry.option("algo", "gas") | {"name": "mine"}
    assert registry.base("algo", of_several) == "mine" and registry.base("algo", registry.option("algo", "go")) == "go"
