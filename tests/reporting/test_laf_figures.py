"""Headline figures of LAF far from its training data, on traces written by hand."""

import json
import math
from pathlib import Path

import pytest
from test_tables import traced

from graphopt.reporting.figures.laf_far import figures_in


def test_shares_and_ratios_by_hand(tmp_path: Path) -> None:
    learned = {"params": 9, "evals_cap": 1000}
    rows = []
    for graph, reached in (("a", 40), ("b", 20)):
        rows += [
            {**traced("motif_scan", 0, [(0, 10.0), (10, 9.0), (100, 6.0)], graph), "evals_cap": 1000},
            {**traced("laf_unguided", 0, [(0, 10.0), (500, 8.0)], graph), "evals_cap": 1000},
            traced("laf_refit", 0, [(0, 10.0), (15, 8.0), (reached, 6.0)], graph) | learned,
            traced("laf_refit_untrained", 0, [(0, 10.0), (300, 7.0)], graph) | learned,
        ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {figure.name: figure for figure in figures_in(tmp_path, rows)}
    share = found["laf_share_of_best_unlearned/far"]
    assert (share.value, share.low, share.high) == pytest.approx((math.sqrt(0.4 * 0.2), 0.2, 0.4))
    assert found["laf_share_of_best_unlearned/far/missed"].value == 0
    assert found["laf_share_of_best_unlearned/far/laf_refit_untrained/missed"].value == 1
    assert found["laf_share_of_uniform/far"].value == pytest.approx(15 / 500)
    assert found["laf_over_motif_scan/far/20"].value == pytest.approx(100 * (math.sqrt(9 / 8 * 9 / 6) - 1))
    assert found["network_on_over_off/far/1000"].value == pytest.approx(100 * (7 / 6 - 1))
