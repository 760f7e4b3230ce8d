"""One cell: compose, build, train if it learns, evaluate, report. `-m` makes a sweep of cells."""

import hydra
from omegaconf import DictConfig

from graphopt.cli import sentences


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    from graphopt.adopt import adopt
    from graphopt.build import build
    from graphopt.cell import open_cell
    from graphopt.evaluate import evaluate_cell

    with open_cell(adopt(config)) as cell:
        if cell.skipped:
            return
        parts = build(cell.config)
        if parts.learns:
            from graphopt.train import prepare

            prepare(parts, cell)
        evaluate_cell(parts, cell)
        cell.show()


if __name__ == "__main__":
    with sentences():
        main()
