"""What each command does: read arguments, call one function of the library, print what it says."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .engine.display import showing_progress
from .errors import ConfigError
from .files import OUTPUTS, diagnose_file, written_whole
from .logic.diagnosis import Diagnoser
from .logic.hierarchy import Hierarchy
from .logic.knowledge import KnowledgeBase


def hierarchy_show(args: argparse.Namespace) -> int:
    h = _hierarchy(args.hierarchy)
    sys.stdout.write(h.to_yaml() if args.yaml else h.tree() + "\n")
    return 0


def _hierarchy(name: str) -> Hierarchy:
    """A built-in name, a file, or a data set's folder or dataset.yaml, which holds one."""
    path = Path(name)
    path = path / "dataset.yaml" if path.is_dir() else path
    if path.name == "dataset.yaml" and path.is_file():
        from .data.layouts.folder import Folder

        return Folder(path.parent).own_hierarchy()
    return Hierarchy.load(name)


def rules_check(args: argparse.Namespace) -> int:
    """Exit code 0 if the rules can be used, 2 if not; warnings do not change it."""
    kb = KnowledgeBase(_hierarchy(args.hierarchy), args.families, Path(args.file), args.root)
    findings = kb.lint()
    for finding in findings:
        sys.stdout.write(f"{args.file}: {finding}\n")
    errors = sum(finding.is_error for finding in findings)
    warnings = sum(finding.kind in ("never_true", "redundant") for finding in findings)
    sys.stdout.write(f"{len(kb.rules)} rules on {kb.hierarchy.title}: {errors} errors, {warnings} warnings\n")
    return 2 if errors else 0


def diagnose(args: argparse.Namespace) -> int:
    rules = Path(args.rules) if args.rules else ()
    kb = KnowledgeBase(_hierarchy(args.hierarchy), args.families, rules, args.root)
    diagnoser = Diagnoser(kb, args.strategy, args.q, args.connectives, args.quantifier, args.budget)
    with showing_progress() as show:
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


def train(args: argparse.Namespace) -> int:
    from .engine.distributed import is_first
    from .engine.load import dump_config, load_config
    from .engine.stop import Interrupted
    from .engine.train import resume
    from .engine.train import train as train_run

    if args.resume:
        if args.config or args.out or args.print_config:
            raise ConfigError("--resume goes on with a run as it was; it takes no configuration and no --out")
        start = lambda: resume(args.resume, args.changes)  # noqa: E731
    else:
        if not args.config:
            raise ConfigError("a configuration is missing: logicdiag train CONFIG.yaml, or --resume RUN")
        config = load_config(args.config, args.changes)
        if args.print_config:
            sys.stdout.write(dump_config(config))
            return 0
        out = Path(args.out or Path("runs") / Path(args.config).stem)
        start = lambda: train_run(config, out, Path(args.config).parent)  # noqa: E731
    try:
        run = start()
    except Interrupted as stopped:
        if is_first():
            sys.stderr.write(f"logicdiag: {stopped}\n")
        return 130
    if is_first():
        sys.stdout.write(f"done: {run.path}; next: logicdiag evaluate {run.path}\n")
    return 0


def methods(args: argparse.Namespace) -> int:
    from .methods.about import markdown, text

    sys.stdout.write(markdown() if args.markdown else text())
    return 0


def evaluate(args: argparse.Namespace) -> int:
    from .engine.evaluate import evaluate_run, evaluation_name
    from .engine.evaluation import render
    from .engine.run import open_run, other_settings

    with showing_progress() as show:
        found = evaluate_run(
            args.run_folder,
            args.split,
            args.checkpoint,
            inference_of(args),
            args.device,
            args.precision,
            show,
            tuple(args.changes),
        )
    val = open_run(args.run_folder, tuple(args.changes)).config.data.val
    written = Path(args.run_folder) / evaluation_name(args.split, val)
    if args.json:
        sys.stdout.write(json.dumps({k: v.to_dict() for k, v in found.items()}, ensure_ascii=False, indent=2) + "\n")
        return 0
    console = Console(highlight=False)
    console.print(render(list(found.values())))
    others = other_settings(args.changes)
    told = f"with {', '.join(others)}, so not the run's own, and not written" if others else f"written: {written}"
    console.print(escape(told), soft_wrap=True)
    return 0


def predict(args: argparse.Namespace) -> int:
    from .engine.predict import predict_run

    with showing_progress() as show:
        done = predict_run(
            args.run_folder,
            args.images,
            args.out,
            args.checkpoint,
            not args.no_overlay,
            args.probabilities,
            inference_of(args),
            args.device,
            args.precision,
            show,
        )
    sys.stdout.write(f"{len(done)} image{'s' * (len(done) != 1)} predicted into {args.out}\n")
    return 0


def data_check(args: argparse.Namespace) -> int:
    """Exit code 0 if training could start, 2 if not; warnings do not change it."""
    from .data.check import check
    from .engine.load import load_config

    config = load_config(args.config, args.changes)
    with showing_progress() as show:
        report = check(config.data, Path(args.config).parent, show)
    Console(highlight=False).print(report.render())
    return 0 if report.ok else 2


def data_draw(args: argparse.Namespace) -> int:
    from .data.draw import draw_list
    from .engine.load import load_config

    config = load_config(args.config, args.changes)
    with showing_progress() as show:
        drawn = draw_list(
            config.data, args.count, args.seed, args.of, args.without, Path(args.config).parent, progress=show
        )
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with written_whole([out]) as [part]:
        part.write_text("".join(f"{name}\n" for name in drawn.names), "utf-8")
    missing = f"; not among them: {', '.join(drawn.missing)}" if drawn.missing else "; every class is among them"
    sys.stdout.write(f"{out}: {len(drawn.names)} of {drawn.of} images{missing}\n")
    return 0


def witness(args: argparse.Namespace) -> int:
    from .engine.likeness import learn_witness
    from .engine.load import load_config
    from .engine.witness import check_out, make_witness

    config, out = load_config(args.config, args.changes), Path(args.out)
    check_out(out)
    with showing_progress() as show:
        base = Path(args.config).parent
        if args.classes is None:
            table = learn_witness(config, base, args.size, show)
        else:
            table = make_witness(config, args.classes, base, args.size, show)
    table.write(out)
    sys.stdout.write(f"{out}: {table}\n")
    return 0


def demo(args: argparse.Namespace) -> int:
    from .engine.demo import run_demo

    run_demo(Path(args.out), args.steps, args.seed, Console(highlight=False))
    return 0


def experiment_run(args: argparse.Namespace) -> int:
    """Exit code 1 if a cell failed, 130 if it was interrupted."""
    from .experiment.commands import list_cells, run_experiment

    changes = [*args.changes, *([] if args.jobs is None else [f"jobs={args.jobs}"])]
    if args.dry_run:
        return list_cells(args.config, changes, args.only, Console(highlight=False), args.missing)
    return run_experiment(args.config, changes, args.only, args.minutes, args.missing)


def experiment_table(args: argparse.Namespace) -> int:
    from .experiment.commands import make_table

    return make_table(args.config, args.changes, not args.no_plots, args.prune, Console(highlight=False))


def experiment_accuracy(args: argparse.Namespace) -> int:
    from .experiment.commands import measure_experiment

    with showing_progress() as show:
        return measure_experiment(
            args.config, args.changes, args.only, args.images, args.device, args.again, Console(highlight=False), show
        )


def experiment_work(args: argparse.Namespace) -> int:
    from .engine.stop import Interrupted
    from .experiment.worker import Jobs, serve

    try:
        serve(Jobs())
    except Interrupted as stopped:
        sys.stderr.write(f"logicdiag: {stopped}\n")
        return 130
    return 0


def pseudo(args: argparse.Namespace) -> int:
    from .experiment.accuracy import measure_run, render

    with showing_progress() as show:
        found = measure_run(args.run_folder, tuple(args.changes), args.images, args.device, args.again, show)
    console = Console(highlight=False)
    console.print(render(found))
    console.print(escape(f"written: {Path(args.run_folder) / 'pseudo.json'}"), soft_wrap=True)
    return 0


def inference_of(args: argparse.Namespace) -> Any:
    """How images are predicted, where the command says so; None: as the run does."""
    from .engine.inference import InferenceConfig

    if args.mode is None:
        if args.size is not None or args.stride is not None:
            raise ConfigError("--size and --stride belong to --mode short_side or --mode slide")
        return None
    return InferenceConfig(args.mode, args.size, args.stride)
