"""What compilers make of requests, remembered: code as a digest and its features, or why there is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from graphopt import cache_dir
from graphopt.core.graph import Graph, GraphError
from graphopt.errors import UserError, writing
from graphopt.measure.builds import Builds, Built
from graphopt.measure.memo import Line, Memo
from graphopt.measure.subject import Failure
from graphopt.ranking.asked import Asked, graph_key
from graphopt.utils.whole import whole_file


class LoweredRequests:
    """The lines of requests of a memo, in one environment; beside them, graphs' programs as files that processes read.
    builds: the processes that lower."""

    def __init__(self, memo: Memo, environment: str, builds: Builds) -> None:
        self.memo, self.environment, self.builds = memo, environment, builds
        self._files: WeakKeyDictionary[Graph, Path] = WeakKeyDictionary()

    def line(self, graph: Graph, asked: Asked) -> Line | None:
        """What became of it; None where it was not asked for yet."""
        return self.memo.lowered(asked.key(graph), self.environment)

    def lines(self, graph: Graph, asked: Sequence[Asked], *, lowers: bool) -> list[Line]:
        """Of each; what is not known is lowered. Raises UserError where it is not known and may not be lowered, and
        gives lines of failures that do not last."""
        fresh = {one.key(graph): one for one in asked if self.line(graph, one) is None}
        if fresh and not lowers:
            raise self.unknown(graph)
        with self.builds.batch():
            asking = {key: self.builds.ask("lower", self.request(graph, one)) for key, one in fresh.items()}
            made = {key: self.remember(graph, fresh[key], answer.result()) for key, answer in asking.items()}
        return [self.line(graph, one) or made[one.key(graph)] for one in asked]

    def unknown(self, graph: Graph) -> UserError:
        """Of what was asked of a graph and stands nowhere, where nothing may be lowered."""
        return UserError(f"{self.memo.path} has no line of what is asked of {graph.name} in the environment "
                         f"{self.environment!r}; set environment=null to lower it here")  # fmt: skip

    def request(self, graph: Graph, asked: Asked) -> dict[str, Any]:
        """As build processes take it."""
        return {"program": str(self.file(graph)), "requests": asked.requests, "knobs": asked.knobs}

    def file(self, graph: Graph) -> Path:
        """The graph's program. Raises GraphError where it has none."""
        if graph.program is None:
            raise GraphError(f"{graph.name} comes without the program that is to be lowered; use dataset=lowered")
        if graph not in self._files:
            path = cache_dir() / "programs" / f"{graph_key(graph)}.program.json.gz"
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(path) as file:
                    file.write(graph.program)
            self._files[graph] = path
        return self._files[graph]

    def remember(self, graph: Graph, asked: Asked, made: Built | Failure) -> Line:
        """What was asked and what became of it, for good; not what failed by chance. Gives its line."""
        line = {"request": asked.key(graph), "environment": self.environment, "program": graph_key(graph),
                **asked._asdict()}  # fmt: skip
        if isinstance(made, Failure):
            line |= {"failure": made.reason}
        else:
            line |= {"digest": made["digest"], "features": made["features"]}
        if self.line(graph, asked) is None and not (isinstance(made, Failure) and not made.lasting):
            with self.memo.turn():
                self.memo.add(line)
        return line
