"""The command line: a thin front, every command is one function of the library."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from . import __version__, commands
from .errors import LogicDiagError
from .explore.commands import add_command as add_explore
from .logic.diagnosis import STRATEGIES
from .logic.fuzzy import CONNECTIVES, QUANTIFIERS
from .report.commands import add_commands as add_report

DEMO_STEPS = 600
PLACES = {"config": "CONFIG", "run_folder": "RUN", "classes": "CLASSES"}
"""Arguments that stand before settings to change."""
EXPERIMENT = ("run", "table", "accuracy", "work")


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parse(arguments)
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
        sys.stderr.write("logicdiag: interrupted\n")
        return 130
    except torch.OutOfMemoryError:
        sys.stderr.write(
            "logicdiag: the GPU's memory is full; try a smaller data.crop, smaller batches (train.labeled_batch, "
            "train.unlabeled_batch), train.accumulate=2 or more, or train.precision=bf16\n"
        )
        return 2
    except OSError as error:
        if error.filename is not None:
            sys.stderr.write(f"logicdiag: {error.filename}: {error.strerror}\n")
            return 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be printed there
        if isinstance(error, BrokenPipeError):
            return 0
        sys.stderr.write(f"logicdiag: the output cannot be written: {error.strerror}\n")
        return 2


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Settings to change may stand anywhere, also before what they change and after options, where argparse would not
    look for them.
    """
    parser = _parser()
    args, rest = parser.parse_known_args(_spelled_out(sys.argv[1:] if arguments is None else arguments))
    takes = hasattr(args, "changes")
    unknown = [text for text in rest if not takes or text.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if takes:
        args.changes = [*args.changes, *rest]
        _deal(args, parser)
    return args


def _deal(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Files to their places, where a setting stands in one of them."""
    places = {name: said for name, said in PLACES.items() if hasattr(args, name)}
    given = [word for name in places if (word := getattr(args, name)) is not None]
    words = [*given, *args.changes]
    settings = [word for word in words if "=" in word and not os.path.exists(word)]
    if not set(given) & set(settings):
        return
    files = [word for word in words if word not in settings][: len(places)]
    args.changes = [word for word in words if word not in files]
    for name, file in zip_longest(places, files):
        setattr(args, name, file)
    if missing := [said for name, said in list(places.items())[len(files) :] if name not in args.optional]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """`experiment FILE` is `experiment run FILE`."""
    words = list(arguments)
    if words[:1] == ["experiment"] and len(words) > 1 and words[1] not in (*EXPERIMENT, "-h", "--help"):
        words.insert(1, "run")
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="logicdiag",
        description="Segmentation from few labels, by reasoning about pseudo labels; and the reasoning by itself.",
    )
    parser.add_argument("--version", action="version", version=f"logicdiag {__version__}")
    parser.set_defaults(optional=())
    every = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_training(every)
    _add_use(every)
    add_report(every, _add_inference)
    add_explore(every, _add_inference)
    _add_experiment(every)
    _add_reasoning(every)
    return parser


def _add_training(every: Any) -> None:
    start = every.add_parser(
        "train",
        help="train from a configuration, or go on with a run",
        description="Trains into a run folder. Ctrl-C saves and says how to go on. Several GPUs: torchrun "
        "--nproc-per-node=4 -m logicdiag train CONFIG.",
    )
    start.add_argument("config", nargs="?", metavar="CONFIG", help="a YAML file")
    start.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change, such as optimizer.lr=0.01")
    start.add_argument("--out", metavar="RUN", help="the run folder; default: runs/ and the configuration's name")
    start.add_argument("--resume", metavar="RUN", help="go on with an interrupted run, exactly where it was")
    start.add_argument("--print-config", action="store_true", help="print all settings and stop")
    start.set_defaults(run=commands.train, optional=("config",))

    known = every.add_parser(
        "methods",
        help="list the methods: paper, year, needs, cost",
        description="What `method.name` may be. See docs/methods.md for how each is wired.",
    )
    known.add_argument("--markdown", action="store_true", help="as a Markdown table")
    known.set_defaults(run=commands.methods)

    data = every.add_parser("data", help="work with data sets").add_subparsers(required=True, metavar="COMMAND")
    check = data.add_parser(
        "check",
        help="look for everything that is wrong with the data, before training",
        description="Reads all images and masks that a configuration names: counts, sizes and classes of each split; "
        "wrong ids, missing or unreadable files, sizes that do not match. Exit code 2 if training could not start.",
    )
    check.add_argument("config", metavar="CONFIG", help="a YAML file")
    check.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change")
    check.set_defaults(run=commands.data_check)
    draw = data.add_parser(
        "draw",
        help="a random list of labelled images in which every common class occurs",
        description="Writes a list file for data.labeled or data.val. The same seed draws the same list.",
    )
    draw.add_argument("config", metavar="CONFIG", help="a YAML file")
    draw.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change")
    draw.add_argument("--count", type=int, required=True, metavar="N", help="images")
    draw.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    draw.add_argument("--of", metavar="S", help="a split or list to draw from; default: data.labeled")
    draw.add_argument("--without", action="append", default=[], metavar="S", help="leave out the images of this list")
    draw.add_argument("--out", required=True, metavar="FILE")
    draw.set_defaults(run=commands.data_draw)

    ask = every.add_parser(
        "witness",
        help="a table of what the encoder's classifier says about unlabelled images",
        description="Asks the classifier that the encoder was trained as about every unlabelled image, and writes how "
        "likely each concept is beside its siblings, for data.witness. How far it is trusted is found on the labelled "
        "images; the masks of the others are not opened.",
    )
    ask.add_argument("config", metavar="CONFIG", help="a YAML file")
    ask.add_argument(
        "classes",
        nargs="?",
        metavar="CLASSES",
        help="a YAML file: concept -> classes, by name, number or range; "
        "without it, unlabelled images are held against the labelled ones",
    )
    ask.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change")
    ask.add_argument("--size", type=int, default=288, metavar="N", help="of the images' short side; default: 288")
    ask.add_argument("--out", required=True, metavar="FILE", help="a .csv file")
    ask.set_defaults(run=commands.witness, optional=("classes",))

    show = every.add_parser(
        "demo",
        help="train supervised, fixmatch and logicdiag on generated scenes and compare them",
        description="Needs no data, no download and no GPU; a few minutes on two cores.",
    )
    show.add_argument("--out", default="runs/demo", metavar="DIR", help="default: runs/demo")
    show.add_argument("--steps", type=int, default=DEMO_STEPS, metavar="N", help=f"each; default: {DEMO_STEPS}")
    show.add_argument("--seed", type=int, default=0, metavar="N")
    show.set_defaults(run=commands.demo)


def _add_use(every: Any) -> None:
    judge = every.add_parser(
        "evaluate",
        help="mIoU per level, violations and mistake severity of a run",
        description="Evaluates the last and the best checkpoint and writes RUN/evaluation-SPLIT.json.",
    )
    judge.add_argument("run_folder", metavar="RUN")
    judge.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change, such as data.root=...")
    judge.add_argument("--split", metavar="S", help="a split or a list file; default: the run's data.val")
    judge.add_argument("--json", action="store_true", help="print JSON instead of tables")
    _add_inference(judge, "both", "last, best or both; default: both")
    judge.set_defaults(run=commands.evaluate)

    use = every.add_parser(
        "predict",
        help="masks and overlays of images",
        description="Writes masks/NAME.png, overlays/NAME.jpg and classes.json.",
    )
    use.add_argument("run_folder", metavar="RUN")
    use.add_argument("images", nargs="+", metavar="IMAGES", help="files, folders and globs")
    use.add_argument("--out", required=True, metavar="DIR")
    use.add_argument("--no-overlay", action="store_true", help="masks alone")
    use.add_argument("--probabilities", action="store_true", help="also probabilities/NAME.npz")
    _add_inference(use, "last", "last or best; default: last")
    use.set_defaults(run=commands.predict)


def _add_experiment(every: Any) -> None:
    about = every.add_parser(
        "experiment",
        help="a grid of runs, their tables and plots",
        usage="logicdiag experiment [-h] [COMMAND] FILE [KEY=VALUE ...]",
        description="`logicdiag experiment FILE` is `logicdiag experiment run FILE`. See docs/experiments.md.",
    ).add_subparsers(required=True, metavar="FILE, or COMMAND FILE", prog="logicdiag experiment")

    start = about.add_parser(
        "run",
        help="train and evaluate every cell, several side by side; go on where it stopped",
        description="What is done is skipped, what was begun goes on. A cell that fails is named at the end (exit code "
        "1) and stops no other. Ctrl-C saves all runs and says how to go on.",
    )
    _add_experiment_file(start)
    start.add_argument("--only", action="append", default=[], metavar="P", help="cells with P in their names; * and ?")
    start.add_argument("--jobs", type=int, metavar="N", help="runs side by side; default: the file's jobs")
    start.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="begin nothing that should take longer; save and stop after N minutes",
    )
    start.add_argument(
        "--missing", action="store_true", help="only cells that the tables have no row of, whoever made these"
    )
    start.add_argument("--dry-run", action="store_true", help="list the cells and how far they are")
    start.set_defaults(run=commands.experiment_run)

    table = about.add_parser(
        "table",
        help="mean and standard deviation over seeds: Markdown, CSV and plots",
        description="Writes TABLE.csv (one row a run; rows of other machines and data sets stay), TABLE-DATASET.md and "
        "plots. Needs no data; plots need matplotlib.",
    )
    _add_experiment_file(table)
    table.add_argument("--no-plots", action="store_true", help="tables alone")
    table.add_argument(
        "--prune", action="store_true", help="drop this data set's CSV rows that are in no cell any more"
    )
    table.set_defaults(run=commands.experiment_table)

    measure = about.add_parser(
        "accuracy",
        help="how good pseudo labels were, of all runs (opens the hidden masks)",
        description="As `logicdiag pseudo`, for the runs of an experiment.",
    )
    _add_experiment_file(measure)
    measure.add_argument(
        "--only", action="append", default=[], metavar="P", help="cells with P in their names; * and ?"
    )
    _add_accuracy(measure)
    measure.set_defaults(run=commands.experiment_accuracy)

    about.add_parser("work").set_defaults(run=commands.experiment_work)  # one cell; started by `run`

    one = every.add_parser(
        "pseudo",
        help="how good a run's pseudo labels were, before and after repair (opens the hidden masks)",
        description="Predicts the unlabelled training images with every snapshot of a run (or its last network), makes "
        "pseudo labels of them and holds these against the masks, which training never opens. Writes RUN/pseudo.json.",
    )
    one.add_argument("run_folder", metavar="RUN")
    one.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change, such as data.root=...")
    _add_accuracy(one)
    one.set_defaults(run=commands.pseudo)


def _add_experiment_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="FILE", help="an experiment, or a suite of them; a YAML file")
    parser.add_argument(
        "changes",
        nargs="*",
        default=(),  # else argparse says that some are required
        metavar="KEY=VALUE",
        help="of the suite, of every experiment or of all runs, such as data.root=...",
    )


def _add_accuracy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images", type=int, metavar="N", help="measure on N of the images, evenly taken; default: all"
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda, ...; default: a GPU if there is one")
    parser.add_argument("--again", action="store_true", help="measure anew what was measured")


def _add_inference(parser: argparse.ArgumentParser, checkpoint: str, told: str) -> None:
    parser.add_argument("--checkpoint", default=checkpoint, metavar="C", help=told)
    parser.add_argument("--mode", metavar="M", help="whole, short_side or slide; default: as the run")
    parser.add_argument("--size", type=int, metavar="N", help="of the short side or the window")
    parser.add_argument("--stride", type=int, metavar="N", help="of the window; default: two thirds of it")
    parser.add_argument("--device", metavar="D", help="cpu, cuda, ...; default: a GPU if there is one")
    parser.add_argument("--precision", metavar="P", help="fp32, bf16 or fp16; default: as the run on a GPU, else fp32")


def _add_reasoning(every: Any) -> None:
    rules = every.add_parser("rules", help="work with rule files").add_subparsers(required=True, metavar="COMMAND")
    check = rules.add_parser(
        "check",
        help="lint a knowledge base",
        description="Syntax, unknown classes, contradictions (a smallest set of rules that contradict each other), "
        "classes that can never be true, redundant rules. Exit code 2 if the rules cannot be used.",
    )
    check.add_argument("file", metavar="FILE", help="a rule file")
    _add_knowledge(check)
    check.set_defaults(run=commands.rules_check)

    trees = every.add_parser("hierarchy", help="work with hierarchies").add_subparsers(required=True, metavar="COMMAND")
    show = trees.add_parser("show", help="draw a hierarchy as a text tree")
    show.add_argument("hierarchy", metavar="H", help="a built-in name, a YAML file, or a data set's dataset.yaml")
    show.add_argument("--yaml", action="store_true", help="as YAML instead")
    show.set_defaults(run=commands.hierarchy_show)

    repair = every.add_parser(
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
    repair.set_defaults(run=commands.diagnose)


def _add_knowledge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hierarchy", required=True, metavar="H", help="a built-in name, a YAML file, or a data set's dataset.yaml"
    )
    parser.add_argument("--families", default="CDE", metavar="CDE", help="rule families to use; default: CDE")
    parser.add_argument(
        "--root", default="asserted", metavar="R", help="asserted (every pixel is something) or free; default: asserted"
    )


if __name__ == "__main__":
    sys.exit(main())
