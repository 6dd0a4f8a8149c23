"""The command line: a thin front, every command is one function of the library."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from . import __version__
from .errors import LogicDiagError
from .files import OUTPUTS, diagnose_file
from .logic.diagnosis import STRATEGIES, Diagnoser
from .logic.fuzzy import CONNECTIVES, QUANTIFIERS
from .logic.hierarchy import Hierarchy
from .logic.knowledge import KnowledgeBase


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without box drawing still shows a tree
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except LogicDiagError as error:
        sys.stderr.write(f"logicdiag: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("logicdiag: interrupted; nothing was written\n")
        return 130
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be printed there
        if isinstance(error, BrokenPipeError):
            return 0
        sys.stderr.write(f"logicdiag: the output cannot be written: {error.strerror}\n")
        return 2


def hierarchy_show(args: argparse.Namespace) -> int:
    h = Hierarchy.load(args.hierarchy)
    sys.stdout.write(h.to_yaml() if args.yaml else h.tree() + "\n")
    return 0


def rules_check(args: argparse.Namespace) -> int:
    """Exit code 0 if the rules can be used, 2 if not; warnings do not change it."""
    kb = KnowledgeBase(Hierarchy.load(args.hierarchy), args.families, Path(args.file), args.root)
    findings = kb.lint()
    for finding in findings:
        sys.stdout.write(f"{args.file}: {finding}\n")
    errors = sum(finding.is_error for finding in findings)
    warnings = sum(finding.kind in ("never_true", "redundant") for finding in findings)
    sys.stdout.write(f"{len(kb.rules)} rules on {kb.hierarchy.title}: {errors} errors, {warnings} warnings\n")
    return 2 if errors else 0


def diagnose(args: argparse.Namespace) -> int:
    rules = Path(args.rules) if args.rules else ()
    kb = KnowledgeBase(Hierarchy.load(args.hierarchy), args.families, rules, args.root)
    diagnoser = Diagnoser(kb, args.strategy, args.q, args.connectives, args.quantifier, args.budget)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        summary = diagnose_file(args.probs, diagnoser, args.out, args.dim, args.seed, show)
    _print_summary(summary, args.out)
    return 0


def _print_summary(summary: dict[str, Any], out: str) -> None:
    console = Console(highlight=False)
    found = f"{summary['conflicts']} in conflict ({summary['conflict_rate']:.2%})"
    console.print(escape(f"{summary['pixels']} pixels, {found}, all repaired by {summary['strategy']}"))
    if summary["not_exhaustive"]:
        console.print(
            f"{summary['not_exhaustive']} pixels had more minimal diagnoses than the budget; the likeliest were weighed"
        )
    _print_counts(console, "broken rule", "pixels", [(k, str(v)) for k, v in summary["broken_rules"].items()])
    moved = sorted(summary["revisions"].items(), key=lambda item: -sum(item[1].values()))
    rows = [(name, str(v["to_true"]), str(v["to_false"])) for name, v in moved]
    _print_counts(console, "revised class", "to true", rows, "to false")
    console.print(escape(f"written: {', '.join(str(Path(out) / name) for name in OUTPUTS)}"), soft_wrap=True)


def _print_counts(console: Console, first: str, second: str, rows: Sequence[tuple[str, ...]], *more: str) -> None:
    if not rows:
        return
    table = Table(first)
    for column in (second, *more):
        table.add_column(column, justify="right")
    for row in rows[:15]:
        table.add_row(*map(escape, row))
    console.print(table)
    if len(rows) > 15:
        console.print(f"and {len(rows) - 15} more in summary.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="logicdiag",
        description="Exact diagnosis and repair of predictions that break the rules of a class hierarchy.",
    )
    parser.add_argument("--version", action="version", version=f"logicdiag {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    rules = commands.add_parser("rules", help="work with rule files").add_subparsers(required=True, metavar="COMMAND")
    check = rules.add_parser(
        "check",
        help="lint a knowledge base",
        description="Syntax, unknown classes, contradictions (a smallest set of rules that contradict each other), "
        "classes that can never be true, redundant rules. Exit code 2 if the rules cannot be used.",
    )
    check.add_argument("file", metavar="FILE", help="a rule file")
    _add_knowledge(check)
    check.set_defaults(run=rules_check)

    trees = commands.add_parser("hierarchy", help="work with hierarchies").add_subparsers(
        required=True, metavar="COMMAND"
    )
    show = trees.add_parser("show", help="draw a hierarchy as a text tree")
    show.add_argument("hierarchy", metavar="H", help="a built-in name or a YAML file")
    show.add_argument("--yaml", action="store_true", help="as YAML instead")
    show.set_defaults(run=hierarchy_show)

    repair = commands.add_parser(
        "diagnose",
        help="diagnose and repair an array of probabilities",
        description="Reads a .npy array of shape (N, n), (n, H, W) or (B, n, H, W) in chunks and writes revised.npy, "
        "leaf.png and summary.json.",
    )
    repair.add_argument("probs", metavar="PROBS.npy")
    _add_knowledge(repair)
    repair.add_argument("--rules", metavar="F", help="a rule file")
    repair.add_argument(
        "--strategy", default="sampling", metavar="S", help=f"{', '.join(STRATEGIES)}; default: sampling"
    )
    repair.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws; default: 0")
    repair.add_argument("--dim", type=int, metavar="D", help="the dimension of concepts, where it is not the usual one")
    repair.add_argument("--q", type=float, default=5, help="of the quantifier; default: 5")
    repair.add_argument(
        "--connectives", default="paper", metavar="NAME", help=f"{', '.join(CONNECTIVES)}; default: paper"
    )
    repair.add_argument(
        "--quantifier", default="pmean_error", metavar="NAME", help=f"{', '.join(QUANTIFIERS)}; default: pmean_error"
    )
    repair.add_argument(
        "--budget", type=int, default=1024, metavar="N", help="diagnoses listed per pixel where they must be"
    )
    repair.add_argument("--out", required=True, metavar="DIR")
    repair.set_defaults(run=diagnose)
    return parser


def _add_knowledge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hierarchy", required=True, metavar="H", help="a built-in name or a YAML file")
    parser.add_argument("--families", default="CDE", metavar="CDE", help="rule families to use; default: CDE")
    parser.add_argument(
        "--root", default="asserted", metavar="R", help="asserted (every pixel is something) or free; default: asserted"
    )


if __name__ == "__main__":
    sys.exit(main())
