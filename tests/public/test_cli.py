"""The command line's manners end with the command."""

import os
import warnings

import pytest

from graphopt.cli import sentences
from graphopt.errors import UserError


@pytest.mark.parametrize("before", [None, "0"])
def test_what_a_command_changes_is_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    if before is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", before)
    format_before = warnings.formatwarning
    with pytest.raises(SystemExit), sentences():
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        raise UserError("wrong")
    assert os.environ.get("HYDRA_FULL_ERROR") == before
    assert warnings.formatwarning is format_before


def test_a_first_command_does_not_make_the_next_show_tracebacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended, sentences():
            raise UserError("one sentence")
        assert ended.value.code == UserError("").exit_code
        assert capsys.readouterr().err == "one sentence\n"
