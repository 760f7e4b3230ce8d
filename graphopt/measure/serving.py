"""The other end of `process.Process`: a loop over requests, in a process of its own."""

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, TextIO

from graphopt.errors import UserError

Request = dict[str, Any]
Tell = Callable[..., None]
"""Says where a request is (`at=3`): its limit of time counts from then on; `more=60.0`: and is so much longer."""


def serve(arguments: list[str], answer: Callable[[Request, Tell], dict[str, Any]]) -> int:
    """Answers line by line until nobody asks any more. arguments: as `Process` gives them. Whatever `answer` raises is
    an answer, {"error", "lasting", "fatal"}: fatal is what the user has to put right first. The pipes are not
    inherited, so that nothing else writes there. It ends without a word when whoever asked is gone."""
    asked, answered = map(int, arguments[1:])
    for pipe in (asked, answered):
        os.set_inheritable(pipe, False)
    gone = contextlib.suppress(BrokenPipeError)
    with gone, os.fdopen(asked) as requests, os.fdopen(answered, "w") as answers:
        _say(answers, {"id": 0, "ready": True})
        for line in requests:
            request = json.loads(line)
            number = request["id"]
            _say(answers, {**_tried(request, answer, lambda n=number, **where: _say(answers, {"id": n, **where})),
                           "id": number})  # fmt: skip
    return 0


def _tried(request: Request, answer: Callable[[Request, Tell], dict[str, Any]], tell: Tell) -> dict[str, Any]:
    try:
        return answer(request, tell)
    except Exception as error:  # whatever a library raises: this request has no other answer
        return {"error": in_words(error), "lasting": lasts(error), "fatal": isinstance(error, UserError)}


def in_words(error: Exception) -> str:
    """What an exception says, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def lasts(error: Exception) -> bool:
    """Whether the same would happen next time: not where memory, disk or files are what was wrong."""
    return not isinstance(error, MemoryError | OSError) and "memory" not in str(error).lower()


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
