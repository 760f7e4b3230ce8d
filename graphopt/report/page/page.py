"""Parts, put together to one HTML file that needs no network. Bokeh's JavaScript is written into it."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from graphopt.core.errors import ConfigError, writing
from graphopt.core.utils.terminal import printable
from graphopt.core.utils.whole import whole_file
from graphopt.report.tables.table import Table

GREY = "#8a8a8a"  # reads on white and on black


@dataclass(frozen=True)
class Part:
    """A heading and its content. plot: a Bokeh model. filter: a field that hides rows of the table."""

    title: str
    table: Table | None = None
    plot: Any = None
    code: str = ""
    note: str = ""
    filter: bool = False


def bokeh() -> Any:
    """The package. Raises ConfigError."""
    try:
        import bokeh.models
        import bokeh.plotting
    except ImportError:
        raise ConfigError("pages are drawn by Bokeh: pip install 'graphopt[html]'") from None
    return bokeh


def write_page(target: Path, title: str, verdict: str, parts: Sequence[Part]) -> Path:
    """Writes the file, all at once. Raises ConfigError where the package is not there for plots."""
    text = page_text(title, verdict, parts)
    with writing(target), whole_file(target) as file:
        file.write(text.encode())
    return target


def page_text(title: str, verdict: str, parts: Sequence[Part]) -> str:
    """The page as HTML; text of files is escaped and printable."""
    plots, script, source, made = [part.plot for part in parts if part.plot is not None], "", "", list[str]()
    if plots:
        bokeh()
        from bokeh.embed import components
        from bokeh.resources import Resources

        script, found = components(plots)
        made, source = [*found], Resources(mode="inline", components=["bokeh", "bokeh-gl", "bokeh-widgets"]).render()
    places = iter(made)
    shown = [{"title": part.title, "table": part.table, "code": part.code, "note": part.note, "filter": part.filter,
              "plot": Markup(next(places)) if part.plot is not None else None} for part in parts]  # fmt: skip
    safe = Environment(autoescape=True, finalize=lambda text: printable(text, "\n") if type(text) is str else text)
    template = safe.from_string(files(__package__).joinpath("page.html").read_text())
    return template.render(title=title, verdict=verdict, parts=shown, resources=Markup(source), script=Markup(script))


def plain(figure: Any) -> None:
    """No background of its own: the page's shows, light or dark."""
    figure.background_fill_alpha = figure.border_fill_alpha = 0
    figure.outline_line_color = None
    figure.grid.grid_line_alpha = 0.25
    figure.toolbar.logo = None
    for axis in figure.axis:
        axis.axis_label_text_color = axis.major_label_text_color = GREY
