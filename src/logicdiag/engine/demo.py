"""Three methods on the built-in scenes, compared; and pictures of pseudo labels before and after repair."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ..data.config import DataConfig, ScenesConfig
from ..data.scenes import scenes as generated
from ..errors import ConfigError, RunError
from ..files import written_whole
from ..logic.diagnosis import Diagnoser
from ..methods.config import LossConfig, MethodConfig
from ..models.segmenter import ModelConfig, Segmenter
from ..pseudo.config import PsiConfig
from .config import Config, OptimizerConfig, TrainConfig
from .evaluate import evaluate_run
from .evaluation import Evaluation
from .figure import Column, coloured, grid, marked
from .run import open_run
from .train import train
from .trainer import Trainer

MOMENTS = (0.1, 0.5, 1.0)
"""Shares of the run at which pseudo labels are drawn."""
SHOWN = 3
"""Unlabelled scenes in the figure."""


def demo_config(method: str, steps: int, seed: int, scenes: ScenesConfig | None = None) -> Config:
    """The configuration of one of the three runs; they differ in the method alone."""
    flat = method != "logicdiag"
    return Config(
        data=DataConfig(
            layout="scenes",
            crop=64,
            scale=(0.75, 1.5),
            workers=0,
            scenes=scenes or ScenesConfig(seed=seed),
        ),
        model=ModelConfig(encoder="small", head="flat" if flat else "hierarchical"),
        method=MethodConfig(
            name="supervised" if method == "supervised" else "fixmatch", weight=1.0, teacher_decay=0.98
        ),
        psi=PsiConfig(name="threshold" if flat else "diagnosis"),
        loss=LossConfig(balance=0.0),
        optimizer=OptimizerConfig(lr=0.01, head_lr=1.0, weight_decay=0.01),
        train=TrainConfig(steps=steps, seed=seed, val_every=max(1, steps // 10)),
    )


@dataclass(frozen=True)
class Compared:
    method: str
    last: Evaluation
    best: Evaluation
    seconds: float


def run_demo(out: Path, steps: int, seed: int, console: Console, scenes: ScenesConfig | None = None) -> list[Compared]:
    """Train, evaluate, print and draw; into `out`, which holds nothing else."""
    if steps < 10:
        raise ConfigError(f"--steps is {steps}, expected at least 10")
    if out.exists() and not (out / "table.json").exists() and any(out.iterdir()):
        raise RunError(f"{out} holds something that is not a demo; name another folder with --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with written_whole([out / "table.json"]) as [part]:
        part.write_text("[]\n")  # marks the folder as a demo's
    found = []
    for method in ("supervised", "fixmatch", "logicdiag"):
        console.print(f"{method}: {steps} steps")
        snapshots = Snapshots(steps) if method == "logicdiag" else None
        begin = time.perf_counter()
        train(demo_config(method, steps, seed, scenes), out / method, observe=snapshots)
        seconds = time.perf_counter() - begin
        evaluations = evaluate_run(out / method)
        found.append(Compared(method, evaluations["last"], evaluations.get("best", evaluations["last"]), seconds))
        if snapshots is not None:
            draw(out / "pseudo_labels.png", out / method, snapshots)
    _write(out / "table.json", found)
    console.print(table(found))
    console.print("best: leaves, of the checkpoint that was best on these very images; -: a flat head", soft_wrap=True)
    console.print(
        "One seed, small pictures, minutes of training: it shows that everything works, and not which method is best.",
        soft_wrap=True,
    )
    console.print(f"figure: {out / 'pseudo_labels.png'}   runs: {out}/*", soft_wrap=True)
    return found


def table(found: list[Compared]) -> Table:
    levels = len(found[0].last.levels)
    title = f"scenes: {found[0].last.images} validation images; mIoU of the last checkpoint in per cent"
    shown = Table(title=title)
    shown.add_column("method")
    for level in range(1, levels + 1):
        shown.add_column("leaves" if level == levels else f"level {level}", justify="right")
    for name in ("best", "violations", "seconds"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in found:
        broken = "-" if row.last.violations is None else f"{100 * row.last.violations.share:.2f} %"
        shown.add_row(
            row.method,
            *(f"{100 * level.miou:.2f}" for level in row.last.levels),
            f"{100 * row.best.miou:.2f}",
            broken,
            f"{row.seconds:.0f}",
        )
    return shown


def _write(path: Path, found: list[Compared]) -> None:
    rows = [
        {"method": c.method, "seconds": round(c.seconds, 1), "last": c.last.to_dict(), "best": c.best.to_dict()}
        for c in found
    ]
    with written_whole([path]) as [part]:
        part.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


# ---- pseudo labels across training -----------------------------------------------------------------------------------


class Snapshots:
    """Keeps the evaluated network's weights at some moments of a run."""

    def __init__(self, steps: int) -> None:
        self.wanted = {max(1, round(moment * steps)) for moment in MOMENTS}
        self.taken: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, trainer: Trainer) -> None:
        if trainer.done in self.wanted:
            weights = trainer.method.evaluated.state_dict()
            self.taken[trainer.done] = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}


@torch.no_grad()
def draw(path: Path, run_path: Path, snapshots: Snapshots) -> None:
    """Rows: unlabelled scenes. Columns: the scene, and at each moment its labels before and after repair; the truth."""
    run = open_run(run_path)
    model = run.model("last")
    h = run.hierarchy
    names = {photo.name for photo in run.dataset().unlabeled[:SHOWN]}
    made = [
        scene for scene in generated(run.config.data.scenes)[1] if scene.name in names
    ]  # with masks, for the eye alone
    images = torch.stack([torch.from_numpy(scene.image()) for scene in made])
    columns = [Column("scene", [image.numpy() for image in images])]
    diagnoser = Diagnoser(run.knowledge, run.config.psi.strategy, run.config.psi.q)
    for step, weights in sorted(snapshots.taken.items()):
        model.load_state_dict(weights)
        probs = _probs(model, images)
        result = diagnoser(probs, generator=torch.Generator().manual_seed(0))
        seen = torch.where(result.conflict, -1, result.leaf)
        share = float(result.conflict.float().mean())
        columns.append(Column(f"step {step}, before: {share:.0%} in conflict", [marked(leaf, h) for leaf in seen]))
        columns.append(Column("after", [coloured(leaf, h) for leaf in result.leaf]))
    columns.append(Column("truth", [coloured(torch.from_numpy(scene.mask()).long(), h) for scene in made]))
    with written_whole([path]) as [part]:
        grid(columns, h).save(part, format="PNG")


def _probs(model: Segmenter, images: torch.Tensor) -> torch.Tensor:
    return model.probs(model(images.movedim(-1, 1).float() / 255))
