"""The verdict of a study in a sentence: is a learned method ahead of the best search without learning?"""

from collections.abc import Iterator, Sequence

from graphopt.report.tables.lines import Difference, differences, group
from graphopt.report.tables.read_rows import Collected, Entry, Setting
from graphopt.report.tables.render import budget_label


def verdict(found: Collected) -> str:
    """A sentence for each learned method, at its smallest budget above 0 at which others were run too, else at 0; the
    best method where nothing is learned. The best without learning is the one that is hardest to beat on average."""
    said = [text for setting, entries in found.by_setting().items() for text in _of(setting, entries)]
    return " ".join(said) or "No method was run beside another one, so nothing is compared."


def _of(setting: Setting, entries: Sequence[Entry]) -> Iterator[str]:
    smaller = "smaller" if dict(setting)["objective"] == "peak_memory" else "faster"
    shown: dict[str, Difference] = {}
    for budget, method in sorted(_learned(entries), key=lambda each: (each[0] == 0, each[0])):
        if method not in shown and (hardest := _hardest(entries, method, budget)) is not None:
            shown[method] = hardest
    for each in shown.values():
        percent = each.ratio.of(lambda ratio: 100 * (ratio - 1))
        said = f"{percent.mean:+.1f} % [{percent.low:.1f}, {percent.high:.1f}]"
        if not percent.known:
            how = f"{abs(percent.mean):.1f} % {smaller if percent.mean >= 0 else 'worse'}"
        elif percent.low > 0:
            how = f"{said.lstrip('+')} {smaller}"
        else:
            how = f"worse ({said})" if percent.high < 0 else f"not shown to be {smaller} ({said})"
        yield f"{_at(each)}, the learned {each.method} is {how} than {each.against}, the best method without learning."
    if not shown and (lines := differences(entries, "default")):
        best = max(lines, key=lambda d: (d.budget, d.ratio.mean))
        yield f"{_at(best)}, {best.method} is best: {best.ratio.text('.3f')} times the default."


def _at(line: Difference) -> str:
    """The budget, and on how many graphs."""
    return f"At {budget_label(line.budget)} evaluations on {line.graphs} test graph{'s' * (line.graphs != 1)}"


def _learned(entries: Sequence[Entry]) -> list[tuple[float, str]]:
    """(budget, method), small budgets first."""
    return sorted({(e.budget, e.method) for e in entries if e.learned})


def _hardest(entries: Sequence[Entry], method: str, budget: float) -> Difference | None:
    """The learned method against the unlearned one that it is least ahead of."""
    at = [e for e in entries if e.budget == budget and (e.method == method or not e.learned)]
    peers = {name for _, name in group(at)} - {method, "default"}
    over = [d for peer in sorted(peers) for d in differences(at, peer) if d.method == method]
    most = max((d.graphs for d in over), default=0)
    return min((d for d in over if d.graphs == most), key=lambda d: d.ratio.mean, default=None)
