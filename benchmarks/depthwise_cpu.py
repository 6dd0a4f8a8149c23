"""How fast does a network of depthwise convolutions learn on a CPU, in bfloat16?

    python benchmarks/depthwise_cpu.py               # EfficientNet-Lite0, 16 crops of 224
    python benchmarks/depthwise_cpu.py --threads 1

One pass forward and back of the whole model, as a training step makes it. PyTorch's own layers come first, in both
orders of memory; then ours, which find gradients by what PyTorch is fast at (`kernels/depthwise_cpu.py`), in the order
that training takes; then ours with freed memory kept, as training does. The floor is the time that the model's products
take at the speed of a large matrix product, measured in the same run. The least of several repeats is shown: other
work on the machine only adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import logicdiag as ld
from logicdiag.engine.fast import in_order, keep_memory
from logicdiag.kernels import depthwise_cpu
from logicdiag.models import ModelConfig, build_model

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="tf_efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = build_model(ModelConfig(encoder=chosen.encoder), ld.Hierarchy.load("voc2012")).train()
    images = torch.rand(chosen.batch, 3, chosen.size, chosen.size)
    rows = []

    def measure(name: str) -> None:
        rows.append((name, least(lambda: learn(model, images), chosen.repeats)))

    pays, depthwise_cpu.Window.pays = depthwise_cpu.Window.pays, property(lambda self: False)
    with FlopCounterMode(display=False) as counter:
        model(images)
    floor = 3 * counter.get_total_flops() / products_per_ms(chosen.repeats)  # forward, and two gradients
    measure("PyTorch's")
    in_order(model)
    measure("PyTorch's, channels last")
    depthwise_cpu.Window.pays = pays
    measure("ours")
    kept = keep_memory(CPU)
    measure("ours, memory kept" if kept else "ours, memory not kept (no glibc)")
    print(
        f"{chosen.encoder}, {chosen.batch} x {chosen.size} x {chosen.size}, bfloat16, threads: {chosen.threads}, "
        f"torch {torch.__version__}\n\n| depthwise convolutions | ms | x ours | x floor |\n|---|---:|---:|---:|"
    )
    ours = rows[-1][1]
    for name, ms in rows:
        print(f"| {name} | {ms:.0f} | {ms / ours:.2f} | {ms / floor:.1f} |")
    print(f"| the floor | {floor:.0f} | {floor / ours:.2f} | 1.0 |")


def learn(model: nn.Module, images: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
    logits.float().square().mean().backward()


def products_per_ms(repeats: int) -> float:
    """Floating-point operations of a large matrix product in a millisecond."""
    size = 2048
    a, b = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / least(lambda: a @ b, repeats)


def least(run: Callable[[], object], repeats: int) -> float:
    """Milliseconds of the quickest of so many runs, after one to warm up."""
    run()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found) * 1000


if __name__ == "__main__":
    main()
