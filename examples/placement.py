"""Placement: on which of four GPUs every op runs."""

from collections import Counter

from graphopt import GraphBuilder, optimize

b = GraphBuilder("towers", family="towers")
x, results = b.tensor((2048, 2048)), []
for _ in range(4):  # independent towers of matrix products
    here = x
    for _ in range(3):
        weight, product = b.tensor((2048, 2048), weight=True), b.tensor((2048, 2048))
        b.op("matmul", [here, weight], [product], flops=2.0 * 2048**3)
        here = product
    results.append(here)
for result in results:
    b.output(result)
answer = optimize(b.build(), task="placement", machine="gpu4_pcie", algo="heft", budget=20)
print("ops of each device:", dict(Counter(kernel.device for kernel in answer.kernels())))
print(f"{1e6 * answer.default_price:.1f} -> {1e6 * answer.price:.1f} us")
