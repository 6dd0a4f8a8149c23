"""How fast are depthwise convolutions, against cuDNN and the least that memory allows?

    python benchmarks/depthwise.py             # a table of the layers of both encoders, and the sums
    python benchmarks/depthwise.py --tune      # also other sizes of programs, for the slowest layers of the first one

The layers are those of an encoder, at the size it is trained at. Numbers are bfloat16, channels_last, from a CUDA
graph, with the caches emptied between measurements; the floor is the time to read and write each tensor once, at the
speed of a copy measured in the same run (what a training step finds in the cache may be faster). cuDNN searches for its
kernels (`cudnn.benchmark`) in one of its columns. Of layers that are alike one is measured, and all are counted. On a
CPU nothing is measured: the table has the bytes alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernels import Bench, replayed
from logicdiag.kernels.gpu import fuses
from logicdiag.models.depthwise import DepthwiseConv2d, fuse_depthwise
from logicdiag.models.encoder import build_encoder

ENCODERS = "tf_efficientnet_lite0:224,tf_efficientnet_lite2:256"
OPERATIONS = ("forward", "dgrad", "wgrad")
BACKENDS = ("ours", "cudnn", "cudnn searched")
OTHERS = (
    {"ROWS": (2, 1)},
    {"ROWS": (1, 1)},
    {"WARPS": 2, "TILE": 512},
    {"WARPS": 8, "TILE": 2048},
    {"WIDEST": 32},
    {"NARROWEST": 64},
    {"SUM_WARPS": 2},
    {"SUM_WARPS": 4},
    {"SHARES": 528},
    {"SHARES": 2112},
    {"SUMS": 50},
)
"""Constants of `logicdiag.kernels.triton_depthwise` that `--tune` tries."""


class Layer(NamedTuple):
    channels: int
    size: tuple[int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: int
    dilation: int
    padding: tuple[int, int, int, int]
    """Top, left, bottom, right."""

    def moved(self, batch: int) -> int:
        """Bytes of input and output; any of the three operations moves both."""
        return 2 * batch * self.channels * (self.size[0] * self.size[1] + self.out[0] * self.out[1])

    def __str__(self) -> str:
        height, width = self.size
        dilated = f" dilated {self.dilation}" if self.dilation > 1 else ""
        return f"{self.channels} x {height} x {width}, {self.kernel[0]} x {self.kernel[1]} / {self.stride}{dilated}"


def layers(encoder: str, size: int) -> Counter[Layer]:
    """The depthwise layers of an encoder for images of a size, and how many there are of each."""
    body, found = fuse_depthwise(build_encoder(encoder)).eval(), Counter()

    def note(conv: DepthwiseConv2d, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        height, width = inputs[0].shape[2:]
        (top, bottom), (left, right) = conv._padding(0, height), conv._padding(1, width)
        around = (top, left, bottom, right)
        inside, outside = (height, width), (out.shape[2], out.shape[3])
        found[Layer(conv.in_channels, inside, outside, conv.kernel_size, conv.stride[0], conv.dilation[0], around)] += 1

    for module in body.modules():
        if isinstance(module, DepthwiseConv2d):
            module.register_forward_hook(note)
    with torch.no_grad():
        body(torch.zeros(1, 3, size, size))
    return found


def ours(layer: Layer, x: Tensor, weight: Tensor, grad: Tensor) -> list[Callable[[], object]]:
    """Each operation by our kernels; the weights come in float32, as in training."""
    from logicdiag.kernels import triton_depthwise as kernels

    window = kernels.Window(*layer.kernel, layer.stride, layer.dilation, *layer.padding)
    taps = kernels.taps_of(weight, x.dtype)
    return [
        lambda: kernels.forward(x, kernels.taps_of(weight, x.dtype), window),
        lambda: kernels.input_gradient(grad, taps, window, layer.size),
        lambda: kernels.weight_gradient(x, grad, weight, window),
    ]


def cudnn(layer: Layer, x: Tensor, weight: Tensor, grad: Tensor) -> list[Callable[[], object]]:
    """Each by torch; where sides are padded unequally the input is padded first, and its gradient cut."""
    top, left, bottom, right = layer.padding
    even = (top, left) == (bottom, right)
    pads = [top, left] if even else [0, 0]
    stride, dilation, groups = [layer.stride] * 2, [layer.dilation] * 2, layer.channels

    def padded() -> Tensor:
        return x if even else nn.functional.pad(x, (left, right, top, bottom))

    kept = padded()

    def backward(mask: list[bool]) -> tuple[Tensor, ...]:
        small = weight.to(x.dtype)
        return torch.ops.aten.convolution_backward(
            grad, kept, small, None, stride, pads, dilation, False, [0, 0], groups, mask
        )

    def of_input() -> Tensor:
        whole = backward([True, False, False])[0]
        return whole if even else nn.functional.pad(whole, (-left, -right, -top, -bottom))

    return [
        lambda: nn.functional.conv2d(padded(), weight.to(x.dtype), None, stride, pads, dilation, groups),
        of_input,
        lambda: backward([False, True, False])[1].float(),
    ]


@contextmanager
def searching(on: bool) -> Iterator[None]:
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, on
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def tensors(layer: Layer, batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    def random(size: tuple[int, int]) -> Tensor:
        values = torch.randn(batch, layer.channels, *size, device=device, dtype=torch.bfloat16)
        return values.to(memory_format=torch.channels_last)

    return random(layer.size), torch.randn(layer.channels, 1, *layer.kernel, device=device), random(layer.out)


def measure(bench: Bench, layer: Layer, batch: int, backends: tuple[str, ...] = BACKENDS) -> dict[str, list[float]]:
    """Milliseconds of each operation, by back end."""
    given = tensors(layer, batch, bench.device)
    found = {}
    for backend in backends:
        with searching(backend == "cudnn searched"):
            works = (ours if backend == "ours" else cudnn)(layer, *given)
            found[backend] = [ms(work) for work in works]
    return found


def ms(work: Callable[[], object]) -> float:
    """The median time; shorter measurements than those of larger kernels, for there are many."""
    from triton.testing import do_bench

    work()
    return float(do_bench(replayed(work), warmup=2, rep=15, return_mode="median"))


def report(bench: Bench | None, name: str, found: Counter[Layer], batch: int) -> list[tuple[float, Layer]]:
    """Print the table; the layers by the time that ours take."""
    columns = [f"{backend} {operation}" for operation in OPERATIONS for backend in BACKENDS]
    print(f"\n{name}, batch {batch}: microseconds\n")
    print("| layer | how many | MB | floor of each | " + " | ".join(columns) + " |")
    print("|---" + "|---:" * (3 + len(columns)) + "|")
    sums, floors, slowest = [0.0] * len(columns), 0.0, []
    for layer, count in found.items():
        moved = layer.moved(batch)
        cells = [str(layer), str(count), f"{moved / 1e6:.1f}"]
        if bench is not None:
            times = measure(bench, layer, batch)
            row = [times[backend][operation] for operation in range(3) for backend in BACKENDS]
            sums = [total + count * time for total, time in zip(sums, row, strict=True)]
            floors += count * moved / bench.bytes_per_ms
            slowest.append((count * sum(times["ours"]), layer))
            cells += [f"{1e3 * time:.1f}" for time in (moved / bench.bytes_per_ms, *row)]
        print("| " + " | ".join(cells + [""] * (len(columns) + 4 - len(cells))) + " |", flush=True)
    total = sum(count * layer.moved(batch) for layer, count in found.items())
    cells = ["all", str(found.total()), f"{total / 1e6:.1f}"]
    cells += [f"{1e3 * time:.0f}" for time in (floors, *sums)] if bench is not None else [""] * (len(columns) + 1)
    print("| " + " | ".join(cells) + " |", flush=True)
    if bench is not None:
        for index, backend in enumerate(BACKENDS):
            all_three = sum(sums[index :: len(BACKENDS)])
            print(f"{backend}: {all_three:.3f} ms for all three, {all_three / (3 * floors):.1f} x floor", flush=True)
    return sorted(slowest, reverse=True)


def tune(bench: Bench, slowest: list[Layer], batch: int) -> None:
    """Microseconds of forward, dgrad and wgrad with other constants, one changed at a time."""
    from logicdiag.kernels import triton_depthwise as kernels

    for layer in slowest:
        print(f"\n{layer}")
        for constants in ({}, *OTHERS):
            before = {name: getattr(kernels, name) for name in constants}
            try:
                for name, value in constants.items():
                    setattr(kernels, name, value)
                times = measure(bench, layer, batch, ("ours",))["ours"]
            finally:
                for name, value in before.items():
                    setattr(kernels, name, value)
            label = ", ".join(f"{name} = {value}" for name, value in constants.items()) or "as it is"
            print(f"  {label:26}" + "".join(f"{1e3 * time:9.1f}" for time in times), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoders", default=ENCODERS, help="NAME:SIZE, joined by commas")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tune", type=int, nargs="?", const=2, default=0, help="for so many layers")
    args = parser.parse_args()
    device = torch.device(args.device)
    bench = Bench(device, quick=False) if fuses(device) else None
    slowest: list[tuple[float, Layer]] = []
    for text in args.encoders.split(","):
        name, size = text.split(":")
        found = report(bench, f"{name} at {size}", layers(name, int(size)), args.batch)
        slowest = slowest or found
    if args.tune and bench is not None:
        tune(bench, [layer for _, layer in slowest[: args.tune]], args.batch)


if __name__ == "__main__":
    main()
