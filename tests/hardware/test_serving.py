"""The loop of a process that answers requests, from the inside."""

import json
import os

from graphopt.core.utils.process import serve


def test_it_ends_without_a_word_when_nobody_reads() -> None:
    asked, ask = os.pipe()
    hear, answered = os.pipe()
    os.write(ask, (json.dumps({"id": 1}) + "\n").encode())
    os.close(hear)
    assert serve(["serve", str(asked), str(answered)], lambda request, tell: {}) == 0
    os.close(ask)


def test_an_error_is_an_answer() -> None:
    asked, ask = os.pipe()
    hear, answered = os.pipe()
    os.write(ask, b'{"id": 7}\n')
    os.close(ask)

    def fails(request: dict[str, object], tell: object) -> dict[str, object]:
        raise ValueError("no such\nplan")

    assert serve(["serve", str(asked), str(answered)], fails) == 0
    with os.fdopen(hear) as answers:
        ready, answer = map(json.loads, answers)
    assert ready == {"id": 0, "ready": True}
    assert answer == {"id": 7, "error": "no such plan", "lasting": True, "fatal": False}
