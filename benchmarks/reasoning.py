"""How fast is the reasoning, against what one would pick instead? Ratios of one run, on this machine.

    python benchmarks/reasoning.py             # prints the tables and writes docs/performance/reasoning.md
    python benchmarks/reasoning.py --quick     # a smaller image and fewer patterns, nothing written

Ours is a whole call of `Diagnoser`: truth degrees, every minimal diagnosis, its likelihood, one draw, and all outputs.
The others only find the minimal diagnoses. "PySAT" enumerates them pattern by pattern with a SAT solver (blocking
what was found); "all models" lists the models and compares all pairs of flip sets by matrix products, as a careful
script would.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path

import torch
from pysat.solvers import Solver
from torch import Tensor

import logicdiag as ld
from logicdiag.logic.clauses import family_clauses, rule_clauses

MOST = 200
"""Diagnoses PySAT enumerates per pattern; where a pattern has more, its time is only a lower bound, marked >."""

INTRODUCTION = f"""
Made by `python benchmarks/reasoning.py` (`make bench`); read the ratios, which come from one run, rather than the
times. *Ours* is a whole call of `Diagnoser` with strategy `sampling`: truth degrees, the posterior over all minimal
diagnoses, one draw, and every output. *PySAT* finds the minimal diagnoses pattern by pattern with an incremental
solver, at most {MOST} each (`>`: some pattern had more). *All models* lists the models and compares all pairs of
flip sets by matrix products. Extra memory is the peak of one call, its result included, as a multiple of the input.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent.parent / "docs" / "performance" / "reasoning.md"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    side, patterns = (129, 20) if args.quick else (513, 40)
    lines = [
        "# The reasoning, measured",
        "",
        *INTRODUCTION.strip().splitlines(),
        "",
        f"One {side} x {side} image, float32, uniform noise in [0, 1], {torch.get_num_threads()} threads; "
        f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}, {_processor()}, {date.today()}.",
        "",
    ]
    lines += _title("C+D+E, and other knowledge bases")
    lines += _against_others(side, patterns)
    lines += _title("Growth with the number of nodes (C+D+E, groups of at most 12)")
    lines += _growth(65 if args.quick else 257)
    print("\n".join(lines))
    if not args.quick:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("\n".join(lines) + "\n", "utf-8")


def _against_others(side: int, patterns: int) -> list[str]:
    table = [
        (
            "knowledge base",
            "nodes",
            "ours us/px",
            "PySAT us/px",
            "PySAT / ours",
            "all models us/px",
            "/ ours",
            "extra memory",
        ),
    ]
    for title, kb in _knowledge_bases():
        h = kb.hierarchy
        diagnoser = ld.Diagnoser(kb)
        probs = torch.rand(1, len(h), side, side)
        # in turns, so that a machine that slows down for a while slows both
        pairs = [(_median(lambda d=diagnoser, p=probs: d(p), 2), _pysat_seconds(kb, probs, patterns)) for _ in range(3)]
        ours = statistics.median(pair[0] for pair in pairs) / side**2
        sat, capped = statistics.median(pair[1][0] for pair in pairs), pairs[0][1][1]
        memory = _peak_extra(kb, side)
        row = [title, str(len(h)), f"{ours * 1e6:.2f}", f"{'> ' if capped else ''}{sat * 1e6:.0f}"]
        row.append(f"{'> ' if capped else ''}{sat / ours:,.0f} x")
        if kb.families == "CDE" and not kb.rules:
            pairwise = _pairwise_seconds(kb, probs)
            row += [f"{pairwise * 1e6:.2f}", f"{pairwise / ours:.1f} x"]
        else:
            row += ["", ""]
        table.append((*row, f"{memory:.2f} x input"))
        _note(f"{title}: done")
    return _markdown(table)


def _knowledge_bases() -> Iterable[tuple[str, ld.KnowledgeBase]]:
    for name in ("voc2012", "cityscapes", "coco"):
        h = ld.Hierarchy.load(name)
        yield f"{name} C+D+E", ld.KnowledgeBase(h)
    for name in ("voc2012", "coco"):
        h = ld.Hierarchy.load(name)
        for families in ("C", "D", "E", "CD", "CE", "DE"):
            yield f"{name} {'+'.join(families)}", ld.KnowledgeBase(h, families)
    rules = [
        "forall x: cat(x) -> ~boat(x)",
        "forall x: bird(x) & indoor_super(x) -> teddy_bear(x)",
        "forall x: fork(x) | knife(x) | spoon(x) -> ~vehicle(x)",
    ]
    coco = ld.Hierarchy.load("coco")
    yield "coco C+D+E, 3 rules", ld.KnowledgeBase(coco, "CDE", rules)
    yield "coco C+E, 3 rules", ld.KnowledgeBase(coco, "CE", rules)
    yield "coco C, 3 rules", ld.KnowledgeBase(coco, "C", rules)


def _growth(side: int) -> list[str]:
    table = [("nodes", "leaves", "us/px", "ns per node and pixel")]
    for nodes in (24, 94, 500, 2000):
        h = _tree(nodes)
        diagnoser = ld.Diagnoser(ld.KnowledgeBase(h))
        probs = torch.rand(1, nodes, side, side)
        seconds = _median(lambda d=diagnoser, p=probs: d(p)) / side**2
        table.append((str(nodes), str(len(h.leaves)), f"{seconds * 1e6:.2f}", f"{seconds / nodes * 1e9:.1f}"))
    return _markdown(table)


def _tree(nodes: int) -> ld.Hierarchy:
    """A tree of so many nodes, in groups of 12 and less, as shallow as that allows."""
    parents, queue = [], [-1]
    while len(parents) < nodes:
        parent = queue.pop(0)
        for _ in range(min(12, nodes - len(parents))):
            queue.append(len(parents))
            parents.append(parent)
    order: list[int] = []
    stack = [i for i in reversed(range(nodes)) if parents[i] == -1]
    while stack:
        order.append(stack.pop())
        stack += [i for i in reversed(range(nodes)) if parents[i] == order[-1]]
    place = {old: new for new, old in enumerate(order)}
    return ld.Hierarchy(
        tuple(f"n{i}" for i in range(nodes)),
        tuple(place[parents[old]] if parents[old] >= 0 else -1 for old in order),
    )


# ---- the others -----------------------------------------------------------------------------------


def _pysat_seconds(kb: ld.KnowledgeBase, probs: Tensor, patterns: int) -> tuple[float, bool]:
    """Seconds per pattern, over at least so many and half a second; and whether one had more than were enumerated."""
    variable = {name: i for i, name in enumerate(kb.hierarchy.names, 1)}
    clauses = [c for _, c in family_clauses(kb)]
    clauses += [c for rule in kb.pixel_rules for c in rule_clauses(rule.name, rule.body)]
    cnf = [[variable[name] if value else -variable[name] for name, value in clause] for clause in clauses]
    columns = probs[0].flatten(1)
    picked = random.Random(0).sample(range(columns.shape[1]), 1000)
    seconds, capped = [], False
    for pixel in picked:
        if len(seconds) >= patterns and sum(seconds) > 0.5:
            break
        observed = [v if columns[v - 1, pixel] > 0.5 else -v for v in variable.values()]
        start = time.perf_counter()
        found = _minimal_flips(cnf, observed)
        seconds.append(time.perf_counter() - start)
        capped |= len(found) >= MOST
    return statistics.mean(seconds), capped


def _minimal_flips(cnf: list[list[int]], observed: list[int]) -> list[set[int]]:
    """Find a model near the observation, give back flips one by one while the rules allow, block it, and go on."""
    found: list[set[int]] = []
    with Solver(name="g4", bootstrap_with=cnf) as solver:
        solver.set_phases(observed)
        while len(found) < MOST and solver.solve():
            model = set(solver.get_model() or ())
            kept = [lit for lit in observed if lit in model]
            flips = [lit for lit in observed if lit not in model]
            needed: list[int] = []
            while flips:
                lit = flips.pop()
                if solver.solve(assumptions=[*kept, lit]):
                    model = set(solver.get_model() or ())
                    kept += [lit, *(other for other in flips if other in model)]
                    flips = [other for other in flips if other not in model]
                else:
                    needed.append(lit)
            found.append(set(needed))
            solver.add_clause(needed)
    return found


def _pairwise_seconds(kb: ld.KnowledgeBase, probs: Tensor) -> float:
    """All models, all pairs of flip sets, by matrix products."""
    h = kb.hierarchy
    models = torch.zeros(len(h.leaves), len(h))
    for i, leaf in enumerate(h.leaf_indices):
        models[i, list(h.path_indices(leaf))] = 1
    observed = (probs[0].flatten(1).T > 0.5).float()[: 4096 * 2]

    def run() -> list[Tensor]:
        minimal = []
        for block in observed.split(512):
            flips = (models[None] - block[:, None]).abs()
            size = flips.sum(-1)
            common = flips @ flips.transpose(1, 2)
            smaller = (common == size[:, :, None]) & (size[:, :, None] < size[:, None, :])
            minimal.append(~smaller.any(1))
        return minimal

    return _median(run) / observed.shape[0]


# ---- measuring ------------------------------------------------------------------------------------


def _median(run: Callable[[], object], repeat: int = 5) -> float:
    run()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _peak_extra(kb: ld.KnowledgeBase, side: int) -> float:
    """Highest resident memory of one call, its result included, above the input's, as a multiple of the input's.

    In a process of its own, so that memory freed earlier does not hide what a call takes (Linux).
    """
    options = (kb.hierarchy.title, kb.families, [str(rule.formula) for rule in kb.rules], side)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_peak_extra_here, *options).result()


def _peak_extra_here(hierarchy: str, families: str, rules: list[str], side: int) -> float:
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(ld.Hierarchy.load(hierarchy), families, rules))
    n = len(diagnoser.kb.hierarchy)
    diagnoser(torch.rand(1, n, 8, 8))
    probs = torch.rand(1, n, side, side)
    try:
        before = _status("VmRSS")
        result = diagnoser(probs)
        peak = _status("VmHWM")
    except OSError:
        return float("nan")
    del result
    return (peak - before) / (probs.numel() * probs.element_size())


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return float(line.split()[1]) * 1024
    raise OSError(key)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _title(text: str) -> list[str]:
    return [f"### {text}", ""]


def _markdown(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    rows = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in table]
    return [rows[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *rows[1:], ""]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
