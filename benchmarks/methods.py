"""What does a step of every method cost against FixMatch, and what does psi = diagnosis add to each?

    python benchmarks/methods.py                          # on a GPU: writes docs/performance/methods.csv
    python benchmarks/methods.py --methods cps,mkd        # some of them; fixmatch is always there to compare with
    python benchmarks/methods.py --encoders small:97      # on a CPU this is the default, and nothing is written

Data, networks and clock are those of benchmarks/step.py: a whole step, from photographs on disk to the averaged
teacher, all methods with the hierarchical head. Each is measured with psi = threshold and psi = diagnosis in turn, as
often as `--repeats` says; times are the medians of the repeats. Memory is that of a GPU, and 0 where there is none.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from logicdiag.errors import choose
from logicdiag.methods.build import METHODS
from step import DOCS, MODES, forget, measure, photographs

PSI = {"threshold": "fixmatch", "diagnosis": "logicdiag"}
"""Each psi, and the variant of benchmarks/step.py that it is."""
BASE = "fixmatch"


class Row(NamedTuple):
    encoder: str
    size: int
    batch: str
    method: str
    mode: str
    threshold_ms: float
    diagnosis_ms: float
    threshold_gib: float
    diagnosis_gib: float


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoders", default="resnet101:513" if on_gpu else "small:97")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--mode", default="captured" if on_gpu else "eager", help=f"of {', '.join(MODES)}")
    parser.add_argument("--repeats", type=int, default=3 if on_gpu else 1)
    parser.add_argument("--steps", type=int, default=40 if on_gpu else 3)
    parser.add_argument("--batch", type=int, default=8 if on_gpu else 2, help="labelled, and as many unlabelled, views")
    parser.add_argument("--workers", type=int, default=6 if on_gpu else 0, help="for each of the two")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--out", type=Path, default=DOCS / "methods.csv" if on_gpu else None)
    args = parser.parse_args()
    names = [choose("--methods", name, METHODS) for name in args.methods.split(",")]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder), 240 if on_gpu else 12)
        for text in args.encoders.split(","):
            encoder, size = text.split(":")
            for name in dict.fromkeys([BASE, *names]):
                rows.append(compare(Path(folder), encoder, int(size), name, args))
                print("\n".join(table(rows)[len(rows) + 1 :]), flush=True)
                if args.out is not None:
                    write(args.out, rows)
    print()
    print("\n".join(table(rows)))


def compare(folder: Path, encoder: str, size: int, name: str, args: argparse.Namespace) -> Row:
    """A method with psi off and on, in turn; without unlabelled images there is no psi, and one of them is both."""
    ms: dict[str, list[float]] = {psi: [] for psi in PSI}
    gib = dict.fromkeys(PSI, 0.0)
    asked = PSI if METHODS[name].needs_unlabeled else {"threshold": PSI["threshold"]}
    for _ in range(args.repeats):
        for psi, variant in asked.items():
            row = measure(folder, encoder, size, variant, args.mode, args, name).row
            ms[psi].append(row.ms)
            gib[psi] = max(gib[psi], row.memory_gib)
            forget()
    plain = asked.keys() != PSI.keys()
    times = [statistics.median(ms["threshold" if plain else psi]) for psi in PSI]
    memory = [gib["threshold" if plain else psi] for psi in PSI]
    return Row(encoder, size, f"{args.batch}+{args.batch}", name, args.mode, *times, *memory)


def table(rows: list[Row]) -> list[str]:
    """Markdown, with ratios to FixMatch with the same psi."""
    lines = [
        "| encoder | size | method | threshold ms | to fixmatch | diagnosis ms | to fixmatch | diagnosis adds | "
        "memory GiB | with diagnosis |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        base = next(r for r in rows if (r.encoder, r.size, r.method) == (row.encoder, row.size, BASE))
        lines.append(
            f"| {row.encoder} | {row.size} | {row.method} | {row.threshold_ms:.2f} | "
            f"{row.threshold_ms / base.threshold_ms:.2f} | {row.diagnosis_ms:.2f} | "
            f"{row.diagnosis_ms / base.diagnosis_ms:.2f} | {row.diagnosis_ms / row.threshold_ms - 1:+.1%} | "
            f"{row.threshold_gib:.1f} | {row.diagnosis_gib:.1f} |"
        )
    return lines


def write(out: Path, rows: list[Row]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
