"""How long does a training step take, data and all, and what does reasoning add to it?

    python benchmarks/step.py                        # on a GPU: both encoders; writes docs/performance/step.csv
    python benchmarks/step.py --encoders small:97    # one of them; on a CPU this is the default, and nothing is written
    python benchmarks/step.py --encoders resnet101:513:captured+compiled

JPEG photographs of 500 x 375 pixels are made, and training is run on them as `logicdiag train` does: workers decode,
views are cut and changed, teacher, student, psi, loss, optimiser, averaged teacher. LogicDiag is psi = diagnosis; the
others are FixMatch with the flat and with the hierarchical head. Times are medians over steps, from device to device.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import yaml
from PIL import Image

import logicdiag as ld
from kernels import machine
from logicdiag.data.open import open_dataset
from logicdiag.engine.config import Config
from logicdiag.engine.distributed import World
from logicdiag.engine.fast import searched
from logicdiag.engine.load import build
from logicdiag.engine.trainer import Trainer

DOCS = Path(__file__).parent.parent / "docs" / "performance"
VARIANTS = {
    "fixmatch flat": ("threshold", "flat"),
    "fixmatch": ("threshold", "hierarchical"),
    "logicdiag": ("diagnosis", "hierarchical"),
}
MODES = {"eager": (False, False), "captured": (False, True), "compiled": (True, True)}
"""Whether the networks are compiled, and whether the step is captured."""


class Row(NamedTuple):
    encoder: str
    method: str
    psi: str
    head: str
    size: int
    batch: str
    ms: float
    memory_gib: float


class Measured(NamedTuple):
    row: Row
    mode: str
    start: float
    """Seconds until steps had their speed: searching for convolutions, compiling, capturing."""


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--encoders",
        default="resnet101:513:captured,tf_efficientnet_lite2:256:captured+compiled" if on_gpu else "small:97:eager",
        help=f"NAME:SIZE, or NAME:SIZE:MODES, joined by +, of {', '.join(MODES)}",
    )
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--steps", type=int, default=60 if on_gpu else 4)
    parser.add_argument("--batch", type=int, default=8 if on_gpu else 2, help="labelled, and as many unlabelled, views")
    parser.add_argument("--workers", type=int, default=6 if on_gpu else 0, help="for each of the two")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--out", type=Path, default=DOCS / "step.csv" if on_gpu else None)
    args = parser.parse_args()
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder), 240 if on_gpu else 12)
        for text in args.encoders.split(","):
            encoder, size, *modes = text.split(":")
            for mode in modes[0].split("+") if modes else ["captured" if on_gpu else "eager"]:
                for variant in args.variants.split(","):
                    found.append(measure(Path(folder), encoder, int(size), variant, mode, args))
                    print("\n".join(table(found[-1:])[2:]), flush=True)
                    if args.out is not None:
                        write(args.out, found)
                    forget()
    print()
    print("\n".join(table(found)))


def photographs(folder: Path, count: int) -> None:
    """A data set on disk: smooth colours with fine grain, and masks of a few large areas."""
    h = ld.Hierarchy.load("voc2012")
    for name in ("images", "masks", "splits"):
        (folder / name).mkdir()
    (folder / "dataset.yaml").write_text(
        yaml.safe_dump({"classes": list(h.leaves), "ignore": 255, "hierarchy": "voc2012"}), "utf-8"
    )
    g = np.random.default_rng(0)
    names = [f"photo{i:03}" for i in range(count)]
    for name in names:
        coarse = Image.fromarray(g.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        grain = np.asarray(coarse, dtype=np.int16) + g.integers(-12, 13, (375, 500, 3), dtype=np.int16)
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"{name}.jpg", quality=92)
        areas = Image.fromarray(g.integers(0, len(h.leaves), (3, 4), dtype=np.uint8)).resize(
            (500, 375), Image.Resampling.NEAREST
        )
        areas.save(folder / "masks" / f"{name}.png")
    (folder / "splits" / "train.txt").write_text("\n".join(names) + "\n", "utf-8")
    (folder / "splits" / "labeled.txt").write_text("\n".join(names[: count // 3]) + "\n", "utf-8")


def measure(
    folder: Path, encoder: str, size: int, variant: str, mode: str, args: argparse.Namespace, method: str = "fixmatch"
) -> Measured:
    psi, head = VARIANTS[variant]
    compiles, captures = MODES[mode]
    on_gpu = args.device.startswith("cuda")
    config = build(
        Config,
        {
            "data": {"root": str(folder), "labeled": "labeled", "val": None, "crop": size, "workers": args.workers},
            "model": {"encoder": encoder, "head": head},
            "method": {"name": method, "ramp": [0.0, 0.0], "stages": {"shares": [2e-5, 1e-5, 1 - 3e-5]}},
            "psi": {"name": psi},
            "optimizer": {"name": "sgd"},
            "train": {
                "steps": 100_000,
                "labeled_batch": args.batch,
                "unlabeled_batch": args.batch,
                "precision": "bf16" if on_gpu else "fp32",
                "compile": compiles,
                "capture": captures if on_gpu else False,
            },
        },
    )
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(config, open_dataset(config.data, folder), World(device=device), folder / "run", folder)
    with ExitStack() as stack:
        stack.enter_context(searched(device))
        batches = trainer._batches(stack)
        begun = time.perf_counter()
        last_stage = max(trainer.method.pauses(config.train.steps), default=0)
        first = last_stage + max(trainer.prepare(print), 1)

        def step() -> None:
            trainer._step(next(batches))
            trainer.done += 1

        for _ in range(first):
            step()
        trainer._line()  # waits
        start = time.perf_counter() - begun
        for _ in range(args.steps // 3):
            step()
        trainer._line()
        if on_gpu:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
            marks[0].record()
            for mark in marks[1:]:
                step()
                mark.record()
            torch.cuda.synchronize()
            times = [one.elapsed_time(other) for one, other in pairwise(marks)]
        else:
            times = []
            for _ in range(args.steps):
                now = time.perf_counter()
                step()
                times.append(1e3 * (time.perf_counter() - now))
    memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    row = Row(
        encoder,
        config.method.name,
        psi,
        head,
        size,
        f"{args.batch}+{args.batch}",
        round(statistics.median(times), 3),
        round(memory, 2),
    )
    return Measured(row, mode, start)


def forget() -> None:
    """Leave nothing of one measurement to the next."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def fastest(found: list[Measured]) -> list[Row]:
    """Of each network, method, psi and head the row of its fastest mode."""
    best: dict[tuple[str, str, str, str, int], Row] = {}
    for measured in found:
        key = (*measured.row[:4], measured.row.size)
        if key not in best or measured.row.ms < best[key].ms:
            best[key] = measured.row
    return list(best.values())


def table(found: list[Measured]) -> list[str]:
    """Markdown, with the ratio to FixMatch with a flat head in the same mode."""
    flat = {(m.row.encoder, m.row.size, m.mode): m.row.ms for m in found if m.row.head == "flat"}
    lines = [
        "| encoder | size | method | psi | head | mode | ms | to flat | memory GiB | start s |",
        "|---|---:|---|---|---|---|---:|---:|---:|---:|",
    ]
    for row, mode, start in found:
        base = flat.get((row.encoder, row.size, mode))
        ratio = f"{row.ms / base:.3f}" if base else ""
        lines.append(
            f"| {row.encoder} | {row.size} | {row.method} | {row.psi} | {row.head} | {mode} | {row.ms:.2f} | {ratio} | "
            f"{row.memory_gib:.1f} | {start:.0f} |"
        )
    return lines


def write(out: Path, found: list[Measured]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(fastest(found))
    facts = machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    out.with_suffix(".json").write_text(json.dumps(facts | {"table": table(found)}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
