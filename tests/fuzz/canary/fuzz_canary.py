"""Nobody may import this: inputs name it, and an input is data. The harness looks whether it was."""

CALLS: list[str] = []


def fire(*arguments: object) -> None:
    """What a pickle or a `_target_` of an input would call."""
    CALLS.append("fire")


class Fire:
    """Likewise, as a class."""

    def __init__(self, *arguments: object) -> None:
        CALLS.append("Fire")
