"""A model or a run held against masks: mIoU per level of the hierarchy, violations, severity."""

from __future__ import annotations

import filecmp
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor

from ..data.dataset import ListRecord, Masked
from ..data.open import open_split
from ..errors import DataError, LogicDiagError, RunError, choose
from ..files import Progress, written_whole
from ..logic.hierarchy import Hierarchy
from ..logic.knowledge import KnowledgeBase
from .evaluation import Broken, Evaluation, Level
from .inference import InferenceConfig, predict_logits, where_to_run
from .metrics import IGNORED, Confusion, Violations

if TYPE_CHECKING:
    from ..models.segmenter import Segmenter

CHECKPOINTS = ("both", "last", "best")
DEFAULT = "val"
"""What an evaluation on the run's own validation list is called."""
BATCH_PIXELS = 1 << 20
"""Images of one size are predicted together, up to this many pixels."""
WINDOW = 64
"""Images among which those of one size are sought."""

Observe = Callable[[Sequence[str], Tensor, Tensor], None]
"""Called with the names of images that were predicted together, their masks (b, h, w) and their logits."""


def evaluate_model(
    model: Segmenter,
    items: Sequence[Masked],
    hierarchy: Hierarchy,
    knowledge: KnowledgeBase,
    inference: InferenceConfig | None = None,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    progress: Progress | None = None,
    rank: int = 0,
    world: int = 1,
    workers: int = 2,
    observe: Observe | None = None,
) -> Evaluation:
    """Predict every item and count its pixels. `model` is a `Segmenter` on `device`; its mode is left as it was.

    With `world` > 1 each rank takes every world-th item, all ranks must call this, and all get the same result.
    `observe` is for those who count something else of the same predictions.
    """
    if not items:
        raise DataError("there is no image to evaluate on")
    confusion = Confusion(hierarchy, device)
    violations = Violations(knowledge, device) if model.head == "hierarchical" else None
    mine = items[rank::world]
    training, error, done = model.training, None, 0
    model.eval()
    try:
        for batch in together(read_ahead(_load, mine, workers), lambda loaded: loaded[2].shape):
            _count(model, batch, confusion, violations, inference, precision, observe)
            done += len(batch)
            if progress:
                progress("evaluation", min(len(items), done * world), len(items))
    except Exception as caught:
        if world == 1:
            raise
        error = caught  # the other ranks wait for this one: meet them first
    finally:
        model.train(training)
    if world > 1:
        _meet(error, device)
        confusion.reduce()
        if violations:
            violations.reduce()
    return Evaluation(
        hierarchy=hierarchy,
        levels=tuple(
            Level(level, confusion.miou(level), dict(zip(names, confusion.iou(level).tolist(), strict=True)))
            for level, names in enumerate(hierarchy.levels, 1)
        ),
        accuracy=confusion.accuracy(),
        severity=confusion.severity(),
        violations=Broken(violations.share(), violations.by_rule()) if violations else None,
        images=len(items),
        pixels=confusion.pixels,
        confusion=confusion.counts.cpu(),
    )


def evaluate_run(
    run_path: str | Path,
    split: str | None = None,
    checkpoint: str = "both",
    inference: InferenceConfig | None = None,
    device: torch.device | str | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
    overrides: tuple[str, ...] = (),
) -> dict[str, Evaluation]:
    """Evaluate the last and the best checkpoint of a run, by name, and write RUN/evaluation-SPLIT.json; nothing is
    written where `overrides` change what the run is, and not only where its data are.

    `split` is any split of the run's data set, or a list file; by default data.val, which it was validated on. With
    "both", a run that has no best checkpoint is evaluated at its last. `inference` and `precision` are the run's own by
    default; `overrides` change its configuration, such as `data.root=...` where the data moved.
    What it was trained on is not looked for.
    """
    from .run import open_run, other_settings

    choose("checkpoint", checkpoint, CHECKPOINTS)
    run = open_run(run_path, overrides)
    device, precision = where_to_run(device, precision, run.config.train.precision)
    inference = inference or run.config.inference
    held_out = open_split(run.config.data, run.base, split)
    if held_out.hierarchy != run.hierarchy:
        raise RunError(f"{run_path}: the data set has another hierarchy now than the run was trained on")
    if split is None and not held_out.items:
        raise DataError(f"{run_path}: the run has no validation images (data.val); name a split to evaluate on")
    labeled = run.record.get("lists", {}).get("labeled")
    results: dict[str, Evaluation] = {}
    for which in ("last", "best") if checkpoint == "both" else (checkpoint,):
        try:
            model = run.model(which, device)
        except RunError:
            if checkpoint == "both" and results and not (Path(run_path) / f"{which}.safetensors").exists():
                continue
            raise
        if which == "best" and "last" in results and _is_last(Path(run_path)):
            found = results["last"]
        else:
            found = evaluate_model(
                model, held_out.items, run.hierarchy, run.knowledge, inference, device, precision, progress=progress
            )
        results[which] = replace(
            found,
            checkpoint=which,
            split=split or DEFAULT,
            list=held_out.record,
            labeled=ListRecord(**labeled) if labeled else None,
        )
    if not other_settings(overrides):
        write_evaluations(Path(run_path) / evaluation_name(split, run.config.data.val), results, inference, precision)
    return results


def _is_last(run: Path) -> bool:
    """Whether the best network is the last one."""
    best, last = run / "best.safetensors", run / "last.safetensors"
    return best.is_file() and last.is_file() and filecmp.cmp(best, last, shallow=False)


def evaluation_name(split: str | None, val: str | None = DEFAULT) -> str:
    """The file in a run folder; `val` is the run's data.val. Another list that is called val, too, is told apart.

    >>> evaluation_name(None), evaluation_name("val"), evaluation_name("lists/my test.txt")
    ('evaluation-val.json', 'evaluation-val.json', 'evaluation-my_test.json')
    >>> evaluation_name(None, "test"), evaluation_name("val", "test"), evaluation_name("test", "test")
    ('evaluation-val.json', 'evaluation-split-val.json', 'evaluation-test.json')
    """
    name = DEFAULT if split is None else re.sub(r"[^A-Za-z0-9._-]", "_", Path(split).name.removesuffix(".txt"))
    return f"evaluation-{'split-' if name == DEFAULT and split not in (None, val) else ''}{name}.json"


def write_evaluations(
    path: Path, results: dict[str, Evaluation], inference: InferenceConfig, precision: str = "fp32"
) -> None:
    """Evaluations by checkpoint, with how the images were predicted; the file is written whole or not at all."""
    content = {
        "inference": asdict(inference),
        "precision": precision,
        "checkpoints": {name: result.to_dict() for name, result in results.items()},
    }
    try:
        with written_whole([path]) as [part]:
            part.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from None


Loaded = tuple[Masked, NDArray[np.uint8], NDArray[np.uint8]]
Item = TypeVar("Item")
Read = TypeVar("Read")


def _load(item: Masked) -> Loaded:
    image, mask = item.image(), item.mask()
    if image.shape[:2] != mask.shape:
        sizes = f"{image.shape[1]} x {image.shape[0]}, the mask {' x '.join(map(str, mask.shape[::-1]))}"
        raise DataError(f"{getattr(item, 'where', item.name)}: the image is {sizes}")
    return item, image, mask


def together(loaded: Iterable[Read], size: Callable[[Read], tuple[int, ...]]) -> Iterator[list[Read]]:
    """Images of one size (height, width) in batches, among those that stand near each other."""
    waiting = iter(loaded)
    while window := list(islice(waiting, WINDOW)):
        sizes: dict[tuple[int, ...], list[Read]] = {}
        for one in window:
            sizes.setdefault(size(one), []).append(one)
        for (height, width), same in sizes.items():
            most = max(1, BATCH_PIXELS // (height * width))
            for start in range(0, len(same), most):
                yield same[start : start + most]


def read_ahead(load: Callable[[Item], Read], items: Iterable[Item], workers: int) -> Iterator[Read]:
    """`load` of each item, in order; a few are read in threads before they are asked for."""
    waiting = iter(items)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        ahead = deque(pool.submit(load, item) for item in islice(waiting, 2 * workers + 1))
        try:
            while ahead:
                loaded = ahead.popleft().result()
                ahead.extend(pool.submit(load, item) for item in islice(waiting, 1))
                yield loaded
        finally:
            for future in ahead:
                future.cancel()


def _count(
    model: Segmenter,
    batch: list[Loaded],
    confusion: Confusion,
    violations: Violations | None,
    inference: InferenceConfig | None,
    precision: str,
    observe: Observe | None,
) -> None:
    device = confusion.counts.device
    images = torch.from_numpy(np.stack([image for _, image, _ in batch])).to(device)
    truth = torch.from_numpy(np.stack([mask for _, _, mask in batch])).to(device)
    logits = predict_logits(model, images.permute(0, 3, 1, 2).float() / 255, inference, precision)
    try:
        confusion.add(model.leaf_logits(logits).max(1).indices, truth)  # on a CPU ten times as fast as argmax
    except LogicDiagError as error:
        names = ", ".join(item.name for item, _, _ in batch)
        raise DataError(f"{names}: {error}") from None
    if violations:
        violations.add(model.probs(logits), truth != IGNORED)
    if observe:
        observe([item.name for item, _, _ in batch], truth, logits)


def _meet(error: Exception | None, device: torch.device | str) -> None:
    """All ranks learn whether one of them failed, so that none waits for it forever."""
    failed = torch.tensor(int(error is not None), device=device)
    torch.distributed.all_reduce(failed)
    if error is not None:
        raise error
    if int(failed):
        raise DataError("the evaluation failed in another process, which says why")
