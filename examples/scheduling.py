"""Scheduling: in which order ops run, here so that a core holds less at its worst moment."""

from graphopt import GraphBuilder, optimize

b = GraphBuilder("branches", family="branches")
x, larges, small = b.tensor((256, 16)), [], []
for _ in range(6):  # first every large result, then something small of each
    wide, large = b.tensor((16, 4096), weight=True), b.tensor((256, 4096))
    b.op("matmul", [x, wide], [large], flops=2.0 * 256 * 16 * 4096)
    larges.append(large)
for large in larges:
    narrow, result = b.tensor((4096, 4), weight=True), b.tensor((256, 4))
    b.op("matmul", [large, narrow], [result], flops=2.0 * 256 * 4096 * 4)
    small.append(result)
joined = b.tensor((256, 24))
b.op("concat", small, [joined])
b.output(joined)
answer = optimize(b.build(), task="scheduling", machine="cpu_core", objective="peak_memory", budget=300)
print("first ops:", [kernel.root for kernel in answer.kernels()][:4])
print(f"peak {answer.default_price / 2**20:.2f} -> {answer.price / 2**20:.2f} MiB")
