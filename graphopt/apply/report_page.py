"""The page that says what was gained in a user's module, by how much, and what was declined."""

from collections.abc import Mapping

from graphopt.answer import Answer
from graphopt.core.knobs import KNOBS
from graphopt.ranking.asked import Asked, asked_of

WORDS = {"store": "stored", "inline": "inlined", "cut": "cut"}  # of requests
NAMED = 12  # ops of a kind that are named
FORBIDDEN = {
    "equal": "not bit-equal to the default's outputs or gradients",
    "close": "too far from the default's outputs or gradients",
}


def page(module: str, answers: Mapping[str, Answer], undone: tuple[str, ...], numerics: str) -> str:
    """answers: by names of graphs; undone: of them, those that are not used."""
    lines = [
        f"{module}, compiled by TorchInductor; numerics: {numerics}. Times of one thread, raced in fresh processes."
    ]
    for name, answer in answers.items():
        lines += ["", *_graph(name, answer, name in undone, numerics)]
    return "\n".join(lines)


def _graph(name: str, answer: Answer, undone: bool, numerics: str) -> list[str]:
    asked, prices = asked_of(answer.plan, 0), answer.prices
    default, ratio = prices["initial"], prices["judged"] / prices["initial"]
    now = 1.0 if undone else ratio
    head = (f"{name}: {answer.graph.num_ops} ops; default {1e3 * default:.4g} ms, now {1e3 * default * now:.4g} ms, "
            f"ratio {now:.3f}, noise {100 * prices['noise']:.2g} % (with that of the default against its copy), "
            f"{answer.facts['evals']} evaluations")  # fmt: skip
    if undone:
        said = [f"declined, {FORBIDDEN[numerics]} (ratio {ratio:.3f}): " + "; ".join(_changed(asked))]
    else:
        said = _changed(asked) or ["as by default", *_unconfirmed(prices)]
    return [head, *(f"  {line}" for line in said)]


def _changed(asked: Asked) -> list[str]:
    """What is done otherwise than by default."""
    lines = []
    for request, word in WORDS.items():
        ops = [name for name, wanted in asked.requests.items() if wanted == request]
        more = f" and {len(ops) - NAMED} more" if len(ops) > NAMED else ""
        lines += [f"{word}: {', '.join(ops[:NAMED])}{more}"] if ops else []
    knobs = [f"{knob.option} = {knob.values[asked.knobs[knob.name]]}" for knob in KNOBS if knob.name in asked.knobs]
    return lines + ([f"set: {', '.join(knobs)}"] if knobs else [])


def _unconfirmed(prices: Mapping[str, float]) -> list[str]:
    """Why nothing is done otherwise."""
    ratio = prices["searched"] / prices["searched_initial"]
    if ratio >= 1:
        return ["declined: nothing that was tried took less time"]
    return [f"declined: the lowest ratio while searching, {ratio:.3f}, was not shown to be below 1 beyond noise in "
            "fresh processes"]  # fmt: skip
