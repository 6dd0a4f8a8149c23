"""How fast are batch norms and their activations, against torch and the least that memory allows?

    python benchmarks/norm.py             # a table of the layers of a model, and the sums
    python benchmarks/norm.py --tune      # also other sizes of programs

The layers are those of a model, encoder and decoder, at the size it is trained at. Numbers are bfloat16, channels_last,
from a CUDA graph, with the caches emptied between measurements. The floor is the time to read and write each tensor
once (forward: two, backward: three), at the speed of a copy measured in the same run: what a layer has just written may
be in the cache, and most layers are too small to come near it. Of layers that are alike
one is measured, and all are counted. On a CPU nothing is measured: the table has the bytes alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import logicdiag as ld
from depthwise import ms
from kernels import Bench
from logicdiag.kernels.gpu import fuses
from logicdiag.models import ModelConfig, build_model
from logicdiag.models.norm_act import FusedBatchNorm2d

ENCODERS = "tf_efficientnet_lite0:224"
COLUMNS = ("ours forward", "torch forward", "ours backward", "torch backward", "ours evaluation", "torch evaluation")
MOMENTUM, EPS = 0.1, 1e-3
OTHERS = (
    {"PROGRAMS": 528},
    {"PROGRAMS": 2112},
    {"TILE": 2048},
    {"TILE": 8192},
    {"WARPS": 8},
    {"WARPS": 8, "TILE": 8192},
    {"PARTIAL": 1024},
    {"PARTIAL": 4096},
    {"SUM_PROGRAMS": 132},
    {"SUM_PROGRAMS": 528},
    {"SUM_WARPS": 4, "SUM_TILE": 1024},
    {"SUM_WARPS": 16, "SUM_TILE": 4096},
    {"AHEAD": 2},
    {"AHEAD": 8},
    {"NARROW": 32},
    {"WIDE": 64},
)
"""Constants of `logicdiag.kernels.triton_norm` that `--tune` tries."""


class Layer(NamedTuple):
    channels: int
    size: tuple[int, int]
    act: str

    def bytes(self, batch: int) -> int:
        """Of the input, and of each of the others."""
        return 2 * batch * self.channels * self.size[0] * self.size[1]

    def __str__(self) -> str:
        return f"{self.channels} x {self.size[0]} x {self.size[1]}, {self.act}"


def layers(encoder: str, size: int) -> Counter[Layer]:
    """The batch norms of a model for images of a size, and how many there are of each."""
    model, found = build_model(ModelConfig(encoder=encoder), ld.Hierarchy.load("voc2012")).eval(), Counter()

    def note(norm: FusedBatchNorm2d, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        act = "relu" if norm.relu_after else norm.act_inside
        found[Layer(norm.num_features, (out.shape[2], out.shape[3]), act)] += 1

    for module in model.modules():
        if isinstance(module, FusedBatchNorm2d):
            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.zeros(1, 3, size, size))
    return found


def works(layer: Layer, batch: int, device: torch.device) -> list[Callable[[], object]]:
    """What the columns measure."""
    from logicdiag.kernels import triton_norm as kernels

    def random() -> Tensor:
        made = torch.randn(batch, layer.channels, *layer.size, device=device, dtype=torch.bfloat16)
        return made.to(memory_format=torch.channels_last)

    x, grad, act = random(), random(), layer.act
    weight, bias, mean, var = (torch.rand(layer.channels, device=device) + 0.5 for _ in range(4))
    batches = torch.zeros((), dtype=torch.int64, device=device)
    aten = torch.ops.aten
    plain, *kept = aten.native_batch_norm(x, weight, bias, mean, var, True, MOMENTUM, EPS)
    together = torch.stack(kept)

    def activate(y: Tensor) -> Tensor:
        return y if act == "none" else y.relu_() if act == "relu" else F.hardtanh_(y, 0.0, 6.0)

    def torch_forward() -> Tensor:
        batches.add_(1)
        return activate(F.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS))

    def torch_backward() -> object:
        through = grad
        if act != "none":
            flat = act == "relu"
            through = aten.threshold_backward(grad, plain, 0) if flat else aten.hardtanh_backward(grad, plain, 0, 6)
        return aten.native_batch_norm_backward(through, x, weight, mean, var, *kept, True, EPS, [True] * 3)

    return [
        lambda: kernels.batch_norm(x, weight, bias, (mean, var, batches), MOMENTUM, EPS, act),
        torch_forward,
        lambda: kernels.gradients(x, weight, bias, together, grad, act),
        torch_backward,
        lambda: kernels.normalise(x, weight, bias, mean, var, EPS, act),
        lambda: activate(F.batch_norm(x, mean, var, weight, bias, False, 0.0, EPS)),
    ]


def report(bench: Bench | None, name: str, found: Counter[Layer], batch: int) -> None:
    print(f"\n{name}, batch {batch}: microseconds\n")
    print("| layer | how many | MB | floor forward | floor backward | " + " | ".join(COLUMNS) + " |")
    print("|---" + "|---:" * (4 + len(COLUMNS)) + "|")
    sums = [0.0] * (2 + len(COLUMNS))
    for layer, count in found.items():
        row = []
        if bench is not None:
            floors = [tensors * layer.bytes(batch) / bench.bytes_per_ms for tensors in (2, 3)]
            row = [*floors, *(ms(work) for work in works(layer, batch, bench.device))]
            sums = [total + count * time for total, time in zip(sums, row, strict=True)]
        show(str(layer), count, layer.bytes(batch), [f"{1e3 * time:.1f}" for time in row])
    total = sum(count * layer.bytes(batch) for layer, count in found.items())
    show("all", found.total(), total, [f"{1e3 * time:.0f}" for time in sums] if bench is not None else [])


def show(name: str, count: int, size: int, times: list[str]) -> None:
    cells = [name, str(count), f"{size / 1e6:.1f}", *(times or [""] * (2 + len(COLUMNS)))]
    print("| " + " | ".join(cells) + " |", flush=True)


def tune(bench: Bench, found: Counter[Layer], batch: int) -> None:
    """Microseconds of forward, backward and evaluation of all layers with other constants."""
    from logicdiag.kernels import triton_norm as kernels

    for constants in ({}, *OTHERS):
        before = {name: getattr(kernels, name) for name in constants}
        try:
            for name, value in constants.items():
                setattr(kernels, name, value)
            sums = [0.0] * 3
            for layer, count in found.items():
                times = [ms(work) for work in works(layer, batch, bench.device)[::2]]
                sums = [total + count * time for total, time in zip(sums, times, strict=True)]
        finally:
            for name, value in before.items():
                setattr(kernels, name, value)
        label = ", ".join(f"{name} = {value}" for name, value in constants.items()) or "as it is"
        print(f"  {label:32}" + "".join(f"{1e3 * time:9.0f}" for time in sums), flush=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoders", default=ENCODERS, help="NAME:SIZE, joined by commas")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tune", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    bench = Bench(device, quick=False) if fuses(device) else None
    for text in args.encoders.split(","):
        name, size = text.split(":")
        found = layers(name, int(size))
        report(bench, f"{name} at {size}", found, args.batch)
        if args.tune and bench is not None:
            tune(bench, found, args.batch)


if __name__ == "__main__":
    main()
