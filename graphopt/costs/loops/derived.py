"""A preset from the times of probes (`graphopt.inductor.probes`): what one takes more than another, over what it has
more."""

from collections.abc import Mapping

from graphopt.costs.loops.preset import Level, Preset

LEAST = 0.001  # ns of an operation: less is noise of a difference
NS = 1e9


def derived(seconds: Mapping[str, float], sizes: Mapping[str, int]) -> Preset:
    """seconds: of one run of each probe. sizes: `terms`, `elements` of sums; `rows`, `columns` of reduced matrices;
    `chosen`, `width` of gathered rows; `side` of multiplied matrices."""
    ns = {name: value * NS for name, value in seconds.items()}
    read, write, near = _traffic(ns)
    tables = {mode: _table(ns, mode, sizes, near) for mode in ("vector", "scalar")}
    result = max((ns["nests 9"] - ns["nests 1"]) / 8, 0.0)
    flop = max(ns["products"] - ns["nests 1"], 0.0) / (2 * sizes["side"] ** 3)
    return Preset(tables["vector"], tables["scalar"], read, write, result, ns["nests 1"], flop)


def _table(ns: Mapping[str, float], mode: str, sizes: Mapping[str, int], near: Level) -> dict[str, float]:
    times = sizes["terms"] * sizes["elements"]
    plain = ns[f"{mode} plain"]
    table = {name.split()[1]: max((value - plain) / times, LEAST)
             for name, value in ns.items() if name.startswith(f"{mode} ") and not name.endswith(" plain")}  # fmt: skip
    scalar = mode == "scalar"
    slow = max(plain - ns["vector plain"], 0.0) / times / 2 if scalar else 0.0  # a term has two plain operations
    numel = sizes["rows"] * sizes["columns"]
    for name in ("sum", "max", "min"):
        for way in ("inner", "outer"):
            found = (ns[f"{way} {name}"] - ns["nests 1"]) / numel - 4 * near[0]
            table[f"{way}.{name}"] = max(found, table["add"]) + slow
    table["inner.welford_reduce"] = (ns["inner welford_reduce"] - ns["nests 1"]) / numel + slow
    gathered = sizes["chosen"] * sizes["width"]
    uneven = max((ns["gathered elements"] - ns["gathered plain"]) / gathered, LEAST)
    table |= {"read": 4 * near[0] + slow, "write": 4 * near[1] + slow, "uneven": 4 * near[0] + uneven}
    table["indirect_indexing"] = max((ns["gathered rows"] - ns["gathered plain"]) / gathered, LEAST)
    table["atomic_add"] = max((ns["gathered added"] - ns["gathered plain"]) / gathered, LEAST)
    table["unknown"] = table["mul"] + slow
    return table


def _traffic(ns: Mapping[str, float]) -> tuple[tuple[Level, ...], tuple[Level, ...], Level]:
    """Of one byte read and written, on top of the nearest, and of the nearest itself."""
    start = ns["nests 1"]
    sizes = sorted(int(name.split()[1]) for name in ns if name.startswith("copy "))
    written = [max(ns[f"fill {size}"] - start, 0.0) / size for size in sizes]
    copied = [max(ns[f"copy {size}"] - start, 0.0) / size for size in sizes]
    loaded = [max(both - one, 0.0) for both, one in zip(copied, written)]
    near = (min(loaded), min(written))
    rising = [_rising([value - least for value in values]) for values, least in zip((loaded, written), near)]
    read = tuple((2.0 * size, extra) for size, extra in zip(sizes, rising[0]))
    return read, tuple((float(size), extra) for size, extra in zip(sizes, rising[1])), near


def _rising(values: list[float]) -> list[float]:
    """None higher than a later one: what is further away costs no less, and calls add noise to what is small."""
    return [min(values[i:]) for i in range(len(values))]
