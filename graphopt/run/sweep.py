"""What a sweep prints: a line per cell, and the study's table at its end."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback

if TYPE_CHECKING:
    from graphopt.records.rows import Row


def cell_line(rows: "list[Row]") -> str:
    """E.g. `9 rows, geometric mean of initial / judged 1.052x, 2 infeasible`."""
    logs = [math.log(r["initial"] / r["judged"]) for r in rows if r.get("status") == "ok" and _priced(r)]
    gain = f", geometric mean of initial / judged {math.exp(sum(logs) / len(logs)):.3f}x" if logs else ""
    other = Counter(str(row.get("status")) for row in rows if row.get("status") != "ok")
    return f"{len(rows)} rows{gain}" + "".join(f", {count} {status}" for status, count in sorted(other.items()))


def _priced(row: "Row") -> bool:
    prices = [row.get(key) or 0.0 for key in ("initial", "judged")]
    return all(math.isfinite(price) and price > 0 for price in prices)


class StudyTable(Callback):
    """Hydra's callback: prints the table of the study when a sweep is over and no cell of it failed."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        from graphopt.report import print_table

        place = Path(config.output_dir) / config.study
        if any(place.glob("*/rows.jsonl")):
            print_table(place)


def spelled_out(job: list[str], algos: Mapping[str, Sequence[str]]) -> list[str]:
    """The job's words with an experiment's own algorithm in words of options; what comes later counts, as ever."""
    found: list[str] = []
    for word in job:
        name = word.removeprefix("algo=")
        found += [*algos[name], f"algo.name={name}"] if word != name and name in algos else [word]
    return found


def sources_of(hydra: Any) -> list[str]:
    """The places that Hydra composes from, and the file it begins with."""
    return [
        str(hydra.job.config_name),
        *(f"{source.provider} {source.path}" for source in hydra.runtime.config_sources),
    ]
