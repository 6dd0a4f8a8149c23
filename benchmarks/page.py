"""docs/performance.md from what the other benchmarks have measured.

python benchmarks/kernels.py && python benchmarks/step.py && python benchmarks/methods.py && python benchmarks/page.py
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import methods
from kernels import Row, table

DOCS = Path(__file__).parent.parent / "docs"
MAIN = ("voc2012", "coco")

PAGE = """# Performance

Ratios of one run each, on {device}: torch {torch}, Triton {triton}, Python {python}, {date}. A copy on the device moves
{copy}, bytes read and bytes written together. All rows: [kernels.csv](performance/kernels.csv),
[step.csv](performance/step.csv), [methods.csv](performance/methods.csv). On a CPU:
[reasoning.md](performance/reasoning.md). Convolutions and norms: [layers.md](performance/layers.md).

    python benchmarks/kernels.py     # the kernels; a minute on a GPU, small on a CPU
    python benchmarks/step.py        # training steps; up to ten minutes, because networks are compiled
    python benchmarks/methods.py     # a step of every method; with --repeats 1 --steps 20 two and a half minutes
    python benchmarks/page.py        # this page

## Reasoning and loss

C, D and E together, bfloat16, noise as input, so that nearly every pixel is in conflict. *reasoning* is truth degrees
over the batch, all minimal diagnoses of every pixel, their weights and one draw, with one byte a pixel as its result;
*reasoning in training* starts from logits, leaves out padding, and also gives the posterior and where rules broke; *a
whole call* is `Diagnoser(...)(probs)` with all that its result holds. *loss* is the binary cross entropy of all nodes
against the path to a leaf, forward and backward; *with leaves* adds the cross entropy of the leaves.

The *floor* is the time to read each prediction once per pass (twice for reasoning: degrees first) and to write each
result once, at the speed of that copy. *pytorch* is the same without our kernels, *pairwise* all models and all pairs
of flip sets by matrix products, as a careful script does it, and *target* the loss with one target per node.

{kernels}

## How cost grows

With pixels (VOC, 24 nodes) and with nodes (one 513 x 513 image, groups of 4 to 10, three levels). Kernels are driven by
tables and not unrolled: a tree of 500 nodes compiles as fast as one of 24, in 1.5 s.

{growth}

## The training step

8 + 8 crops, bfloat16, JPEG photographs of 500 x 375 decoded by 12 workers, everything included. *captured*: the step
is one CUDA graph; *compiled*: the networks are compiled as well (`train.compile`). *to flat* is the ratio to FixMatch
with a flat head in the same run: what the hierarchy's head, the reasoning and its loss add. *start* is the time for
searching convolutions, compiling and capturing. What was compiled once is kept on disk, as it was here; the first time,
compiling took 90 to 160 s. Compiled or not, ten steps have the same losses within 0.4 %; captured or not, the same.
These were measured before depthwise convolutions and batch norms had kernels of their own.

{step}

## The methods

ResNet-101, 8 + 8 crops of 513, bfloat16, captured, everything included as above, all with the hierarchical head; each
method with psi = threshold and with psi = diagnosis in the same run (`--repeats 1 --steps 20`). It was made after
convolutions and norms had got their kernels, so FixMatch is faster than above. Memory is the most that PyTorch held.
`supervised` has no psi. `algorithm1` is the paper's own loop, without an averaged teacher.

{methods}

A step waits for nothing: tests run it under PyTorch's synchronisation debug mode, which turns every wait into an error.
"""


def main() -> None:
    with (DOCS / "performance" / "kernels.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            Row(
                r["operation"],
                r["backend"],
                r["device"],
                r["tree"],
                int(r["nodes"]),
                r["dtype"],
                int(r["pixels"]),
                float(r["ms"]),
                float(r["floor_ms"]),
            )
            for r in csv.DictReader(file)
        ]
    facts = json.loads((DOCS / "performance" / "kernels.json").read_text("utf-8"))
    step = json.loads((DOCS / "performance" / "step.json").read_text("utf-8"))
    most = max(row.pixels for row in rows if row.tree == "coco")
    shown = [row for row in rows if row.tree in MAIN and (row.pixels == most or row.backend == "pairwise")]
    growth = [row for row in rows if row.operation == "reasoning" and row.backend == "triton" and row.tree != "coco"]
    page = PAGE.format(
        **facts,
        kernels="\n".join(table(shown)),
        growth="\n".join(_growth(growth)),
        step="\n".join(step["table"]),
        methods="\n".join(methods.table(_methods())),
    )
    (DOCS / "performance.md").write_text(page, "utf-8")


def _methods() -> list[methods.Row]:
    with (DOCS / "performance" / "methods.csv").open(encoding="utf-8", newline="") as file:
        found = csv.reader(file)
        next(found)
        return [
            methods.Row(encoder, int(size), batch, name, mode, *map(float, figures))
            for encoder, size, batch, name, mode, *figures in found
        ]


def _growth(rows: list[Row]) -> list[str]:
    lines = ["| tree | nodes | pixels | ms | x floor | ps per node and pixel |", "|---|---:|---:|---:|---:|---:|"]
    for row in sorted(rows, key=lambda row: (row.nodes, row.pixels)):
        each = 1e9 * row.ms / row.nodes / row.pixels
        floor = row.ms / row.floor_ms
        lines.append(f"| {row.tree} | {row.nodes} | {row.pixels} | {row.ms:.3f} | {floor:.1f} | {each:.2f} |")
    return lines


if __name__ == "__main__":
    main()
