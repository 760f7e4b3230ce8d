"""Configurations of older versions: the words of their files, and their meaning here."""

from typing import Any

# Where packages, modules or classes were, as files of older versions have it -> where they are. The longest name
# counts.
_MOVED = {  # without `graphopt.`
    "algos": "learn", "costs.additive": "rewrite.program_cost", "costs.calibrated": "hardware.costs.calibrated",
    "costs.inductor": "hardware.costs.inductor", "costs.live_bytes": "hardware.costs.live_bytes",
    "costs.strategy_cost": "contests.sharding.sharding_task", "costs.tile_time": "contests.tiling.tiling_task",
    "contests.sharding.strategy_cost": "contests.sharding.sharding_task",
    "contests.tiling.tile_time": "contests.tiling.tiling_task", "rewrite.additive": "rewrite.program_cost",
    "costs.whole_program": "hardware.costs.whole_program", "datasets": "graphs",
    "datasets.contests": "contests.tiling",
    "datasets.contests.sharding_instances": "contests.sharding.sharding_instances",
    "datasets.contests.tiling_contest": "contests.tiling.tiling_contest",
    "datasets.lowered": "hardware.datasets.lowered", "datasets.programs": "hardware.datasets.programs",
    "datasets.rewrite_models": "rewrite.models.rewrite_models", "encoders": "learn.encoders",
    "search.fusion.compiler_policy": "hardware.search.compiler_policy", "search.rewriting": "rewrite.search",
    "search.rewriting.remeasured": "hardware.search.remeasured", "search.sharding": "contests.sharding",
    "search.tiling": "contests.tiling.search", "sharding": "contests.sharding",
    "problems.tasks.joint": "problems.tasks.placement", "problems.tasks.scheduling": "problems.tasks.placement",
    "tasks": "problems.tasks", "tasks.joint": "problems.tasks.placement",
    "tasks.scheduling": "problems.tasks.placement", "tasks.rewriting": "rewrite.rewrite_problem",
    "rewrite.rewriting": "rewrite.rewrite_problem", "tasks.sharding_task": "contests.sharding.sharding_task",
    "tiling": "contests.tiling", "algos.modelling.run_model": "learn.modelling.kernel_model",
    "encoders.gat": "learn.encoders.convolutions", "encoders.gin": "learn.encoders.convolutions",
    "encoders.graphsage": "learn.encoders.convolutions", "encoders.pyg": "learn.encoders.convolutions",
    "encoders.sequence": "learn.encoders.message_passing", "costs.learned": "hardware.costs.inductor",
    "costs.inductor.Learned": "hardware.costs.inductor.GeneratedCode",
    "costs.learned.Learned": "hardware.costs.inductor.GeneratedCode",
    "hardware.costs.inductor.Learned": "hardware.costs.inductor.GeneratedCode",
    "costs.onnx_runtime": "hardware.costs.whole_program", "costs.profiled": "hardware.costs.whole_program",
    "costs.torch_eager": "hardware.costs.whole_program", "datasets.training_step": "graphs.torch_module",
    "machine": "core.machine", "search.annealing": "search.walks.local", "search.brkga": "search.genetic.brkga",
    "search.cpsat": "search.solvers.cpsat", "search.default": "search.heuristics.schedules",
    "search.gp_dfs": "search.heuristics.schedules", "search.inline_all": "search.fusion.xla_priority",
    "search.list_scheduling": "search.heuristics.schedules", "search.load_balance": "search.pipelines.load_balance",
    "search.local": "search.walks.local", "search.pet": "rewrite.search.rewrite_walks",
    "search.progressive": "search.walks.local", "search.walks.progressive": "search.walks.local",
    "search.fusion.motif_scan": "search.fusion.modelled_scan", "search.recompute.segments": "search.saved_sets",
    "search.random": "search.walks.local",
    "search.regal_local": "search.walks.key_moves", "search.rewrite_greedy": "rewrite.search.rewrite_walks",
    "search.rewrite_random": "rewrite.search.rewrite_walks", "search.scan": "search.walks.local",
    "search.taso": "rewrite.search.rewrite_walks", "search.tensat": "rewrite.search.tensat",
    "search.windowed": "search.walks.windowed", "search.xla_priority": "search.fusion.xla_priority",
    "tasks.tiled_execution": "contests.tiling.tiling_task",
    "datasets.contests.tiling_contest.TilingContest": "contests.tiling.tiling_contest.TilingProblems",
}  # fmt: skip
MOVED: dict[str, str] = {f"graphopt.{old}": f"graphopt.{now}" for old, now in _MOVED.items()}


# Options -> names in older versions: options that were values of these. Files hold all values.
_FORMER = {
    "algo": {
        "brkga": "brkga_informed brkga_seeded brkga_tuned brkga_tuned_runtime local_then_brkga",
        "compiler_search": "plan_sample", "cpsat": "exact", "inductor_order": "bfs dfs lpmf",
        "joint_search": "task_sequence",
        "laf": "laf_fresh laf_gain_random_start laf_no_priority laf_no_transform laf_random_start laf_signed",
        "laf_refit": "laf_gain laf_motif", "laf_unguided": "laf_unguided_random_start", "load_balance": "contiguous",
        "motif_scan": "rules_scan", "regal_local": "regal_local_heuristic",
        "remeasured": "remeasured_greedy remeasured_mcts remeasured_sums remeasured_tensat",
        "scan": "scan_random_start", "tensat": "tensat_greedy",
    },
    "cost": {"generated_code": "learned"},
    "dataset": {
        "models": "models_far", "regal": "regal_paper regal_runtime", "regal_mixed": "regal_transfer",
        "synthetic": "layered", "tiling": "tiling_contest tiling_taught",
        "zoo": "go_graphs regal_zoo zoo_laf zoo_large",
    },
}  # fmt: skip
FORMER: dict[str, dict[str, str]] = {
    group: {old: now for now, names in options.items() for old in names.split()} for group, options in _FORMER.items()
}


# Settings that came later -> their value for files that lack them.
ADDED: dict[str, dict[str, Any]] = {
    "graphopt.run.training.settings.TrainerSettings": {"num_nodes": 1},
    "graphopt.hardware.costs.inductor.Inductor": {"allocator": "keep"},
    "graphopt.hardware.costs.whole_program.Profiled": {"runtime": "torch"},
    "graphopt.hardware.search.compiler_policy.CompilerPolicy": {"sure": 0.04, "code": True},
    "graphopt.hardware.costs.inductor.GeneratedCode": {"preset": "shipped"},
    "graphopt.learn.modelling.kernel_model.KernelModel": {"fit": False},
    "graphopt.learn.go.GO": {"guided": True, "placing": None},
    "graphopt.learn.regal.REGAL": {"actions": "graph"},
    "graphopt.learn.rewriters.xrlflow.XRLflow": {"totals": True, "sampled": False, "encoded": False},
    "graphopt.learn.rewriters.xrlflow.XRLflowPaper": {"encoded": False},
    "graphopt.problems.tasks.fusion.Fusion": {"numerics": None, "device": "cpu"},
    "graphopt.hardware.datasets.lowered.LoweredPrograms": {"device": "cpu"},
    "graphopt.graphs.zoo_dataset.ZooDataset": {"collection": None},
    "graphopt.graphs.torch_module.TorchModule": {"graphnet": None},
    "graphopt.graphs.graphnet.GraphNet": {"left_out": None, "training": None, "testing": None},
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


# Removed settings -> the value that the present code stands for. A file with another value is refused.
ANY = object()  # any value
REMOVED: dict[str, dict[str, Any]] = {
    "graphopt.hardware.costs.inductor.Inductor": {"filter": None},
    "graphopt.hardware.costs.inductor.GeneratedCode": {"weights": ANY},  # costs that were fitted to plans
    "graphopt.hardware.search.compiler_policy.CompilerPolicy": {"weights": ANY},
    "graphopt.contests.tiling.tiling_contest.TilingProblems": {"drawn": ANY},  # graphs to train on
    "graphopt.search.walks.local.Annealing": {"deltas": False},
    "graphopt.search.walks.local.LocalSearch": {"deltas": False},
    "graphopt.search.walks.local.Scan": {"deltas": False},
    "graphopt.rewrite.search.mcts.Mcts": {"cycles": "efficient"},
    "graphopt.rewrite.search.tensat.Tensat": {"cycles": "efficient"},
}
