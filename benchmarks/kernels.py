"""How fast are the fused kernels, against plain PyTorch, the pairwise way, and the least that memory allows?

    python benchmarks/kernels.py             # prints the table; on a GPU it writes docs/performance/kernels.csv
    python benchmarks/kernels.py --quick     # few pixels, nothing written

The floor of an operation is the time to move what it must move, each prediction read once per pass and each result
written once, at the speed of a copy measured in the same run. Inputs are noise, so nearly every pixel is in conflict;
they are larger than the caches, which are emptied between measurements. Times are medians; what needs no word from the
host is captured as a CUDA graph first, as training does it.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import logicdiag as ld
from logicdiag.kernels.gpu import fuses
from logicdiag.logic.diagnosis import Diagnoser
from logicdiag.logic.fast import Fast
from logicdiag.logic.leaves import Leaves
from logicdiag.methods.loss import path_bce, path_table

DOCS = Path(__file__).parent.parent / "docs" / "performance"
SIDE = 513


class Row(NamedTuple):
    operation: str
    backend: str
    device: str
    tree: str
    nodes: int
    dtype: str
    pixels: int
    ms: float
    floor_ms: float


def replayed(work: Callable[[], object]) -> Callable[[], object]:
    """The same from a CUDA graph, as in training, so that no kernel waits for its launch."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Bench:
    def __init__(self, device: torch.device, quick: bool) -> None:
        self.device, self.quick = device, quick
        self.name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self.rows: list[Row] = []
        size = (1 << 30) if device.type == "cuda" else (1 << 27)
        source, target = torch.empty(2, size, dtype=torch.uint8, device=device)
        self.bytes_per_ms = 2 * size / min(self.ms(lambda: target.copy_(source), captured=False) for _ in range(3))
        print(f"{self.name}, torch {torch.__version__}; a copy moves {self.bytes_per_ms / 1e9:.2f} TB/s", flush=True)

    def ms(self, work: Callable[[], object], captured: bool = True) -> float:
        """The median time, in milliseconds; slow work is measured less often."""
        work()
        if self.device.type == "cuda":
            from triton.testing import do_bench

            if captured:
                work = replayed(work)
            return float(do_bench(work, warmup=5, rep=60, return_mode="median"))
        times = []
        while len(times) < 3 or (len(times) < 20 and sum(times) < 500):
            start = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)

    def add(
        self,
        operation: str,
        backend: str,
        tree: str,
        values: Tensor,
        moved: float,
        work: Callable[[], object],
        captured: bool = True,
    ) -> None:
        """`moved`: bytes that cannot but be moved; `captured`: whether it can run without a word from the host."""
        pixels = values.numel() // values.shape[1]
        kind = str(values.dtype).removeprefix("torch.")
        row = Row(
            operation,
            backend,
            self.name,
            tree,
            values.shape[1],
            kind,
            pixels,
            round(self.ms(work, captured), 5),
            round(moved / self.bytes_per_ms, 5),
        )
        self.rows.append(row)
        print(
            f"{operation:20} {backend:9} {tree:10} {row.nodes:5} nodes {pixels:9} px {row.ms:10.4f} ms "
            f"{row.ms / row.floor_ms:9.2f} x floor",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="where to write the rows; docs/performance on a GPU")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda", torch.cuda.current_device()) if args.device == "cuda" else torch.device(args.device)
    bench = Bench(device, args.quick or device.type == "cpu")
    out = args.out or (DOCS / "kernels.csv" if args.device != "cpu" and not args.quick else None)
    for part in (_main_table, _growth_with_pixels, _growth_with_nodes):
        part(bench)
        if out is not None:
            write(out, bench)
    print()
    print("\n".join(table(bench.rows)))


def _main_table(bench: Bench) -> None:
    images = 1 if bench.quick else 16
    side = 65 if bench.quick else SIDE
    for name in ("voc2012", "coco"):
        _reasoning(bench, name, ld.Hierarchy.load(name), images, side * side)
        _loss(bench, name, ld.Hierarchy.load(name), images, side * side)


def _growth_with_pixels(bench: Bench) -> None:
    h = ld.Hierarchy.load("voc2012")
    for images, side in ((1, 33), (1, 65)) if bench.quick else ((1, 65), (1, 257), (1, SIDE), (4, SIDE), (64, SIDE)):
        _reasoning(bench, "voc2012", h, images, side * side, others=False)


def _growth_with_nodes(bench: Bench) -> None:
    for nodes in (50, 200) if bench.quick else (50, 200, 500, 1000, 2000):
        h = random_tree(nodes)
        _reasoning(bench, f"random{nodes}", h, 1, (33 if bench.quick else SIDE) ** 2, others=False)


def random_tree(nodes: int) -> ld.Hierarchy:
    """Groups of 4 to 10, three levels at most."""
    rng, tree, made = random.Random(nodes), {}, 0
    while made < nodes:
        groups = {}
        for _ in range(rng.randint(4, 10)):
            size = min(rng.randint(4, 10), nodes - made - 1)
            if size < 1:
                break
            groups[f"g{made}"] = [f"x{made + 1 + i}" for i in range(size)]
            made += size + 1
        if not groups:
            tree[f"x{made}"] = None
            made += 1
        else:
            tree[f"s{made}"] = groups
            made += 1
    return ld.Hierarchy.from_dict(tree)


def _reasoning(bench: Bench, tree: str, h: ld.Hierarchy, images: int, pixels: int, others: bool = True) -> None:
    """Truth degrees, diagnosis and sampling; C, D and E."""
    n, dtype = len(h), torch.bfloat16
    probs = torch.rand(images, n, pixels, device=bench.device).to(dtype)
    read, byte = probs.numel() * probs.element_size(), images * pixels
    diagnoser = Diagnoser(ld.KnowledgeBase(h))
    count = torch.tensor(float(images * pixels), dtype=torch.float64, device=bench.device)
    fast = diagnoser.fast(bench.device)
    if fast is not None and fast.measures:
        seeds = torch.arange(images, device=bench.device)

        def measured(values: Tensor, logits: bool) -> Tensor:
            return fast.degrees(fast.sums(values, None, logits), count)[1]

        trust = measured(probs, False)
        bench.add("truth degrees", "triton", tree, probs, read, lambda: measured(probs, False))
        bench.add("diagnosis", "triton", tree, probs, read + byte, lambda: _leaf(fast, probs, trust, seeds))
        bench.add(
            "reasoning",
            "triton",
            tree,
            probs,
            2 * read + byte,
            lambda: _leaf(fast, probs, measured(probs, False), seeds),
        )
        if others:
            logits = torch.logit(probs.float(), 1e-4).to(dtype)
            valid = torch.ones(images, pixels, dtype=torch.bool, device=bench.device)

            def as_in_training() -> object:
                trust = fast.degrees(fast.sums(logits, valid, True), count)[1]
                return fast.diagnose(logits, trust, seeds, valid, logits=True)

            bench.add("reasoning in training", "triton", tree, logits, 2 * read + 6 * byte, as_in_training)
            whole = 3 * read + 2 * n * byte + 14 * byte  # checked, measured, diagnosed; all that a result holds
            bench.add("a whole call", "triton", tree, probs, whole, lambda: diagnoser(probs), False)
    if others or fast is None:
        some = probs if others else probs[:, :, : min(pixels, 1 << 16)]
        plain = Diagnoser(ld.KnowledgeBase(h))
        plain._fast[bench.device] = None
        kept = some.numel() * some.element_size()
        bench.add("truth degrees", "pytorch", tree, some, kept, lambda: plain.truth_degrees(some), False)
        bench.add("reasoning", "pytorch", tree, some, 2 * kept + some[:, 0].numel(), lambda: plain(some), False)
    if others:
        few = probs[:1, :, : 1 << 16].contiguous()
        moved = few.numel() * few.element_size() + few[:, 0].numel()
        paths = _paths(h, bench.device)
        bench.add("diagnosis", "pairwise", tree, few, moved, lambda: _pairwise(few, paths))


def _leaf(fast: Fast, probs: Tensor, trust: Tensor, seeds: Tensor) -> object:
    """One small integer a pixel, and nothing else."""
    return fast.diagnose(probs, trust, seeds, None, prob=False, conflict=False)


def _paths(h: ld.Hierarchy, device: torch.device) -> Tensor:
    table = torch.zeros(len(h.leaves), len(h), dtype=torch.bool, device=device)
    for row, leaf in enumerate(h.leaf_indices):
        table[row, list(h.path_indices(leaf))] = True
    return table


def _pairwise(probs: Tensor, paths: Tensor) -> Tensor:
    """The minimal diagnoses as a careful script finds them: all models, all pairs of flip sets, by matrix products."""
    minimal = []
    half = torch.float16 if probs.is_cuda else torch.float32
    for part in (probs > 0.5).movedim(1, -1).flatten(0, 1).split(4096):
        flips = (part[:, None] ^ paths).to(half)
        common = torch.bmm(flips, flips.transpose(1, 2))
        size = flips.sum(-1)
        inside = (common == size[:, None, :]) & (size[:, None, :] < size[:, :, None])
        minimal.append(~inside.any(-1))
    return torch.cat(minimal)


def _loss(bench: Bench, tree: str, h: ld.Hierarchy, images: int, pixels: int) -> None:
    """Hierarchical binary cross entropy, forward and backward, against leaves and weights."""
    n, dtype = len(h), torch.bfloat16
    logits = torch.randn(images, n, pixels, device=bench.device).mul(2).to(dtype).requires_grad_()
    leaf = torch.randint(len(h.leaves), (images, pixels), device=bench.device).to(torch.uint8)
    weight = torch.rand(images, pixels, device=bench.device)
    moved = 3 * logits.numel() * logits.element_size() + 2 * 5 * leaf.numel()

    def backward(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def work() -> None:
            logits.grad = None
            loss().backward()

        return work

    if fuses(bench.device):
        from logicdiag.kernels.triton_loss import Intervals, leaf_loss
        from logicdiag.kernels.triton_shares import Siblings, shares

        table, siblings = Intervals.of(h.parents, bench.device), Siblings.of(h.parents, bench.device)
        bench.add(
            "loss", "triton", tree, logits, moved, backward(lambda: leaf_loss(table, logits, leaf, weight, 1.0, 0.0))
        )
        both = backward(lambda: leaf_loss(table, logits, leaf, weight, 1.0, 1.0))
        bench.add("loss with leaves", "triton", tree, logits, moved, both)

        def along() -> Tensor:
            nodes = leaf_loss(table, logits, leaf, weight, 1.0, 0.0)
            return nodes - (shares(siblings, logits, leaf).sum(1) * weight).sum()

        bench.add("loss by the tree", "triton", tree, logits, moved, backward(along))
    paths, leaves = path_table(h).to(bench.device), torch.tensor(h.leaf_indices, device=bench.device)
    target = torch.zeros(len(h.leaves), n, device=bench.device)
    for row, index in enumerate(h.leaf_indices):
        target[row, list(h.path_indices(index))] = 1

    def gathered() -> Tensor:
        return (path_bce(logits.float(), leaf.long(), paths) * weight).sum()

    def built() -> Tensor:
        labels = target[leaf.long()].movedim(-1, 1)
        per_node = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none")
        return (per_node.sum(1) * weight).sum()

    def with_leaves() -> Tensor:
        ce = F.cross_entropy(logits.float().index_select(1, leaves), leaf.long(), reduction="none")
        return gathered() + (ce * weight).sum()

    def by_tree() -> Tensor:
        ce = F.cross_entropy(decided.scores(logits), leaf.long(), reduction="none")
        return gathered() + (ce * weight).sum()

    decided = Leaves(h, "tree").to(bench.device)
    bench.add("loss", "pytorch", tree, logits, moved, backward(gathered))
    bench.add("loss", "target", tree, logits, moved, backward(built))
    bench.add("loss with leaves", "pytorch", tree, logits, moved, backward(with_leaves))
    bench.add("loss by the tree", "pytorch", tree, logits, moved, backward(by_tree))


def table(rows: list[Row]) -> Iterator[str]:
    """Markdown: time, how many times the floor, and how many times ours, per pixel."""
    ours: dict[tuple[str, str], float] = {}
    for row in rows:
        if row.backend == "triton":
            ours.setdefault((row.operation, row.tree), row.ms / row.pixels)
    yield "| operation | back end | tree | nodes | pixels | ms | x floor | x ours, per pixel |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    for row in rows:
        mine = ours.get((row.operation, row.tree))
        times = "" if mine is None or row.backend == "triton" else f"{row.ms / row.pixels / mine:.0f}"
        yield (
            f"| {row.operation} | {row.backend} | {row.tree} | {row.nodes} | {row.pixels} | {row.ms:.3f} | "
            f"{row.ms / row.floor_ms:.1f} | {times} |"
        )


def write(out: Path, bench: Bench) -> None:
    """The rows, and beside them on what they were measured."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(bench.rows)
    facts = machine(bench.device) | {"copy": f"{bench.bytes_per_ms / 1e9:.2f} TB/s"}
    out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


def machine(device: torch.device) -> dict[str, str]:
    """What a measurement was made on, with what, and when."""
    facts = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"}
    facts |= {"torch": torch.__version__, "python": platform.python_version(), "date": str(date.today())}
    if device.type == "cuda":
        facts["triton"] = version("triton")
    return facts


if __name__ == "__main__":
    main()
