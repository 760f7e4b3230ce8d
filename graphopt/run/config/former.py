"""Configurations of older versions: what their files say, and what that means here."""

from typing import Any

# Where packages, modules or classes were, as files of older versions have it -> where they are. The longest name
# counts.
MOVED: dict[str, str] = {
    "graphopt.algos": "graphopt.learn",
    "graphopt.costs.additive": "graphopt.rewrite.additive",
    "graphopt.costs.calibrated": "graphopt.hardware.costs.calibrated",
    "graphopt.costs.inductor": "graphopt.hardware.costs.inductor",
    "graphopt.costs.live_bytes": "graphopt.hardware.costs.live_bytes",
    "graphopt.costs.strategy_cost": "graphopt.contests.sharding.strategy_cost",
    "graphopt.costs.tile_time": "graphopt.contests.tiling.tile_time",
    "graphopt.costs.whole_program": "graphopt.hardware.costs.whole_program",
    "graphopt.datasets": "graphopt.graphs",
    "graphopt.datasets.contests": "graphopt.contests.tiling",
    "graphopt.datasets.contests.sharding_instances": "graphopt.contests.sharding.sharding_instances",
    "graphopt.datasets.contests.tiling_contest": "graphopt.contests.tiling.tiling_contest",
    "graphopt.datasets.lowered": "graphopt.hardware.datasets.lowered",
    "graphopt.datasets.programs": "graphopt.hardware.datasets.programs",
    "graphopt.datasets.rewrite_models": "graphopt.rewrite.models.rewrite_models",
    "graphopt.encoders": "graphopt.learn.encoders",
    "graphopt.search.fusion.compiler_policy": "graphopt.hardware.search.compiler_policy",
    "graphopt.search.fusion.motif_scan": "graphopt.search.fusion.modelled_scan",
    "graphopt.search.walks.progressive": "graphopt.search.walks.local",
    "graphopt.search.recompute.segments": "graphopt.search.saved_sets",
    "graphopt.search.rewriting": "graphopt.rewrite.search",
    "graphopt.search.rewriting.remeasured": "graphopt.hardware.search.remeasured",
    "graphopt.search.sharding": "graphopt.contests.sharding",
    "graphopt.search.tiling": "graphopt.contests.tiling.search",
    "graphopt.sharding": "graphopt.contests.sharding",
    "graphopt.problems.tasks.joint": "graphopt.problems.tasks.placement",
    "graphopt.problems.tasks.scheduling": "graphopt.problems.tasks.placement",
    "graphopt.tasks": "graphopt.problems.tasks",
    "graphopt.tasks.joint": "graphopt.problems.tasks.placement",
    "graphopt.tasks.scheduling": "graphopt.problems.tasks.placement",
    "graphopt.tasks.rewriting": "graphopt.rewrite.rewrite_problem",
    "graphopt.rewrite.rewriting": "graphopt.rewrite.rewrite_problem",
    "graphopt.tasks.sharding_task": "graphopt.contests.sharding.sharding_task",
    "graphopt.tiling": "graphopt.contests.tiling",
    "graphopt.algos.modelling.run_model": "graphopt.learn.modelling.kernel_model",
    "graphopt.encoders.gat": "graphopt.learn.encoders.convolutions",
    "graphopt.encoders.gin": "graphopt.learn.encoders.convolutions",
    "graphopt.encoders.graphsage": "graphopt.learn.encoders.convolutions",
    "graphopt.encoders.pyg": "graphopt.learn.encoders.convolutions",
    "graphopt.encoders.sequence": "graphopt.learn.encoders.message_passing",
    "graphopt.costs.learned": "graphopt.hardware.costs.inductor",
    "graphopt.costs.onnx_runtime": "graphopt.hardware.costs.whole_program",
    "graphopt.costs.profiled": "graphopt.hardware.costs.whole_program",
    "graphopt.costs.torch_eager": "graphopt.hardware.costs.whole_program",
    "graphopt.datasets.training_step": "graphopt.graphs.torch_module",
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
    "graphopt.search.pet": "graphopt.rewrite.search.rewrite_walks",
    "graphopt.search.progressive": "graphopt.search.walks.local",
    "graphopt.search.random": "graphopt.search.walks.local",
    "graphopt.search.regal_local": "graphopt.search.walks.key_moves",
    "graphopt.search.rewrite_greedy": "graphopt.rewrite.search.rewrite_walks",
    "graphopt.search.rewrite_random": "graphopt.rewrite.search.rewrite_walks",
    "graphopt.search.scan": "graphopt.search.walks.local",
    "graphopt.search.taso": "graphopt.rewrite.search.rewrite_walks",
    "graphopt.search.tensat": "graphopt.rewrite.search.tensat",
    "graphopt.search.windowed": "graphopt.search.walks.windowed",
    "graphopt.search.xla_priority": "graphopt.search.fusion.xla_priority",
    "graphopt.tasks.tiled_execution": "graphopt.contests.tiling.tiling_task",
    "graphopt.datasets.contests.tiling_contest.TilingContest": (
        "graphopt.contests.tiling.tiling_contest.TilingProblems"
    ),
}


# Options that were values of another one, as files of older versions have them -> that one. Files hold all values.
FORMER: dict[str, dict[str, str]] = {
    "algo": {
        "bfs": "inductor_order",
        "brkga_informed": "brkga",
        "brkga_seeded": "brkga",
        "brkga_tuned": "brkga",
        "brkga_tuned_runtime": "brkga",
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
    },
    "dataset": {
        "go_graphs": "zoo",
        "layered": "synthetic",
        "models_far": "models",
        "regal_paper": "regal",
        "regal_runtime": "regal",
        "regal_transfer": "regal_mixed",
        "regal_zoo": "zoo",
        "zoo_laf": "zoo",
        "zoo_large": "zoo",
        "tiling_contest": "tiling",
        "tiling_taught": "tiling",
    },
}


# Settings that came later -> what files that lack them mean.
ADDED: dict[str, dict[str, Any]] = {
    "graphopt.problems.tasks.fusion.Fusion": {"numerics": None},
    "graphopt.graphs.zoo_dataset.ZooDataset": {"collection": None},
    "graphopt.rewrite.models.rewrite_models.RewriteModels": {"apart": "models"},
    "graphopt.contests.sharding.sharding_task.Sharding": {"clock": "wall"},
    "graphopt.contests.tiling.tiling_task.Tiling": {"clock": "wall", "shared_slices": "per_operand"},
    "graphopt.contests.tiling.tiling_contest.TilingProblems": {
        "source": "files",
        "random": {"train": [], "val": [], "test": [], "sizes": [128], "products": 0.0, "graph_seed": 0},
    },
    "graphopt.contests.sharding.sharding_instances.ShardingInstances": {
        "source": "files",
        "random": {"graph_seed": 0, "nodes": 1, "count": {}, "strategies": 1, "hyper": 0.0, "impossible": 0.0},
    },
}


# Settings that are no more -> the value that means what holds without them. A file that says another value is refused.
ANY = object()  # whatever the value is
REMOVED: dict[str, dict[str, Any]] = {
    "graphopt.hardware.costs.inductor.Inductor": {"filter": None},
    "graphopt.contests.tiling.tiling_contest.TilingProblems": {"drawn": ANY},  # graphs to train on
    "graphopt.search.walks.local.Annealing": {"deltas": False},
    "graphopt.search.walks.local.LocalSearch": {"deltas": False},
    "graphopt.search.walks.local.Scan": {"deltas": False},
    "graphopt.rewrite.search.mcts.Mcts": {"cycles": "efficient"},
    "graphopt.rewrite.search.tensat.Tensat": {"cycles": "efficient"},
}
