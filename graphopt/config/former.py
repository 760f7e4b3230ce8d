"""Configurations of older versions: what their files say, and what that means here."""

from typing import Any

# Where classes or whole modules were, as files of older versions have it -> where they are.
MOVED: dict[str, str] = {
    "graphopt.machine": "graphopt.core.machine",
    "graphopt.search.annealing": "graphopt.search.walks.local",
    "graphopt.search.brkga": "graphopt.search.genetic.brkga",
    "graphopt.search.cpsat": "graphopt.search.solvers.cpsat",
    "graphopt.search.default": "graphopt.search.heuristics.schedules",
    "graphopt.search.gp_dfs": "graphopt.search.heuristics.schedules",
    "graphopt.search.inline_all": "graphopt.search.fusion.xla_priority",
    "graphopt.search.list_scheduling": "graphopt.search.heuristics.schedules",
    "graphopt.search.load_balance": "graphopt.search.pipelines.load_balance",
    "graphopt.search.local": "graphopt.search.walks.local",
    "graphopt.search.pet": "graphopt.search.rewriting.rewrite_walks",
    "graphopt.search.progressive": "graphopt.search.walks.progressive",
    "graphopt.search.random": "graphopt.search.walks.local",
    "graphopt.search.regal_local": "graphopt.search.walks.key_moves",
    "graphopt.search.rewrite_greedy": "graphopt.search.rewriting.rewrite_walks",
    "graphopt.search.rewrite_random": "graphopt.search.rewriting.rewrite_walks",
    "graphopt.search.scan": "graphopt.search.walks.local",
    "graphopt.search.taso": "graphopt.search.rewriting.rewrite_walks",
    "graphopt.search.tensat": "graphopt.search.rewriting.tensat",
    "graphopt.search.windowed": "graphopt.search.walks.windowed",
    "graphopt.search.xla_priority": "graphopt.search.fusion.xla_priority",
    "graphopt.sweep": "graphopt.run.sweep",
}


# Options that were values of another one, as files of older versions have them -> that one. Files hold all values.
FORMER: dict[str, dict[str, str]] = {
    "algo": {
        "bfs": "inductor_order",
        "brkga_informed": "brkga",
        "brkga_seeded": "brkga",
        "brkga_tuned_runtime": "brkga_tuned",
        "contiguous": "load_balance",
        "dfs": "inductor_order",
        "exact": "cpsat",
        "laf_fresh": "laf",
        "laf_gain": "laf_refit",
        "laf_gain_random_start": "laf",
        "laf_motif": "laf_refit",
        "laf_no_priority": "laf",
        "laf_no_transform": "laf",
        "laf_random_start": "laf",
        "laf_signed": "laf",
        "laf_unguided_random_start": "laf_unguided",
        "lpmf": "inductor_order",
        "plan_sample": "compiler_search",
        "regal_local_heuristic": "regal_local",
        "remeasured_greedy": "remeasured",
        "remeasured_mcts": "remeasured",
        "remeasured_sums": "remeasured",
        "remeasured_tensat": "remeasured",
        "rules_scan": "motif_scan",
        "scan_random_start": "scan",
        "task_sequence": "joint_search",
        "tensat_greedy": "tensat",
    }
}


# Settings that came later -> what files that lack them mean.
ADDED: dict[str, dict[str, Any]] = {"graphopt.tasks.fusion.Fusion": {"numerics": None},
                                    "graphopt.datasets.rewrite_models.RewriteModels": {"apart": "models"},
                                    "graphopt.costs.inductor.Inductor": {"filter": None},
                                    "graphopt.tasks.sharding_task.Sharding": {"clock": "wall"},
                                    "graphopt.tasks.tiled_execution.Tiling": {"clock": "wall",
                                                                               "shared_slices": "per_operand"},
                                    "graphopt.datasets.contests.tiling_contest.TilingContest": {"drawn": None},
                                    "graphopt.search.tiling.tile_walk.TileWalk": {
                                        "order": {"by": "passes", "power": 1.0, "patience": 1.0}}}  # fmt: skip
