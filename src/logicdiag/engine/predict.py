"""Masks, overlays and probabilities of images that nobody has labelled."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from ..data.files import ImageFile, is_image, opened, walk, without_suffix
from ..errors import DataError, OptionError, choose, hint
from ..files import Progress, written_whole
from ..logic.hierarchy import Hierarchy
from ..palette import leaf_colours, picture_palette
from .evaluate import read_ahead
from .inference import InferenceConfig, predict_logits, where_to_run

CLASSES = "classes.json"
OPACITY = 0.55
JPEG_QUALITY = 92


@dataclass(frozen=True)
class Source:
    """An image to predict, and the name of its results: its path below the folder it was found in."""

    path: Path
    name: str


@dataclass(frozen=True)
class Prediction:
    """What was written for one image; paths are None for what was not asked for."""

    image: Path
    mask: Path
    overlay: Path | None
    probabilities: Path | None


def predict_run(
    run_path: str | Path,
    images: Sequence[str | Path],
    out: str | Path,
    checkpoint: str = "last",
    overlay: bool = True,
    probabilities: bool = False,
    inference: InferenceConfig | None = None,
    device: torch.device | str | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
    overrides: tuple[str, ...] = (),
) -> list[Prediction]:
    """Predict files, folders and globs into the folder `out`.

    `masks/NAME.png` holds the ids that the data set's own masks have, with a palette; `classes.json` says which id and
    which colour is which class; `overlays/NAME.jpg` shows the colours over the image;
    `probabilities/NAME.npz` has `probabilities`, float16 of shape (names, height, width), and `names`. An image that
    its camera marks as turned is turned upright first. The files of an image are written whole and together.
    `inference` and `precision` are the run's own by default; `overrides` change its configuration.
    """
    from .run import open_run

    choose("checkpoint", checkpoint, ("last", "best"))
    if not str(out):
        raise OptionError("the folder to write to has an empty name")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file, expected a folder to write to")
    sources = find_images(images, folder)
    targets = [_targets(source, folder, overlay, probabilities) for source in sources]
    _refuse_overwriting(sources, targets)
    for source in sources:
        with opened(source.path):  # what is no image is told before anything is predicted
            pass
    run = open_run(run_path, overrides)
    device, precision = where_to_run(device, precision, run.config.train.precision)
    inference = inference or run.config.inference
    model, h = run.model(checkpoint, device), run.hierarchy
    _write_classes(folder, h, run.ids)
    pictures = read_ahead(lambda source: ImageFile(source.path)(), sources, workers=2)
    for done, (target, picture) in enumerate(zip(targets, pictures, strict=True), 1):
        image = torch.from_numpy(picture).to(device).permute(2, 0, 1)[None].float() / 255
        logits = predict_logits(model, image, inference, precision)
        leaf = model.leaf_logits(logits).argmax(1)[0].to(torch.uint8).cpu().numpy()
        probs = model.probs(logits)[0].half().cpu().numpy() if target.probabilities else None
        _write(target, h, run.ids, picture, leaf, probs, h.names if model.head == "hierarchical" else h.leaves)
        if progress:
            progress("prediction", done, len(sources))
    return targets


def find_images(images: Sequence[str | Path], out: Path | None = None) -> list[Source]:
    """The images of files, folders (with all below them) and globs, each once; results in `out` are passed over."""
    found: dict[str, Source] = {}
    for given in images:
        for source in _expand(str(given), out):
            found.setdefault(os.path.abspath(source.path), source)
    if not found:
        raise DataError("there is no image to predict: give files, folders or globs")
    return list(found.values())


def blend(
    picture: UInt8[np.ndarray, "h w 3"], leaf: UInt8[np.ndarray, "h w"], colours: UInt8[np.ndarray, "leaves 3"]
) -> UInt8[np.ndarray, "h w 3"]:
    """The colours of the leaves over the image, and a light line where one class meets another."""
    mixed: np.ndarray = (picture * (1 - OPACITY) + colours[leaf] * OPACITY).round().astype(np.uint8)
    edge = np.zeros(leaf.shape, bool)
    edge[:, 1:] |= leaf[:, 1:] != leaf[:, :-1]
    edge[1:] |= leaf[1:] != leaf[:-1]
    mixed[edge] = 255 - (255 - mixed[edge]) // 3
    return mixed


def _expand(given: str, out: Path | None) -> list[Source]:
    path = Path(given)
    if path.is_file():
        return [Source(path, without_suffix(path.name))]
    if path.is_dir():
        files = _outside(walk(path), out)
        if not files:
            raise DataError(f"{given}: there is no image in the folder")
        return [_below(file, path) for file in files]
    if not glob.has_magic(given):
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"{given}: there is no such file or folder{hint(path.name, beside)}")
    base = Path(*_plain_start(path))
    matches = sorted(Path(match) for match in glob.glob(given, recursive=True))
    files = [file for match in matches for file in (walk(match) if match.is_dir() else [match]) if is_image(file)]
    files = _outside(files, out)
    if not files:
        raise DataError(f"{given}: no image matches")
    return [_below(file, base) for file in files]


def _plain_start(path: Path) -> list[str]:
    """The parts of a glob before the first that has a wildcard."""
    parts = []
    for part in path.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return parts


def _below(file: Path, base: Path) -> Source:
    return Source(file, without_suffix(file.relative_to(base).as_posix()))


def _outside(files: list[Path], out: Path | None) -> list[Path]:
    return [f for f in files if out is None or out.resolve() not in f.resolve().parents]


def _targets(source: Source, out: Path, overlay: bool, probabilities: bool) -> Prediction:
    return Prediction(
        source.path,
        out / "masks" / f"{source.name}.png",
        out / "overlays" / f"{source.name}.jpg" if overlay else None,
        out / "probabilities" / f"{source.name}.npz" if probabilities else None,
    )


def _refuse_overwriting(sources: Sequence[Source], targets: Sequence[Prediction]) -> None:
    owners: dict[Path, Path] = {}
    inputs = {source.path.resolve() for source in sources}
    for target in targets:
        other = owners.setdefault(target.mask, target.image)
        if other is not target.image:
            raise DataError(
                f"{other} and {target.image} would both be written to {target.mask}; "
                "predict them into different folders"
            )
        for path in (target.mask, target.overlay):
            if path is not None and path.resolve() in inputs:
                raise DataError(f"{path}: the image would be overwritten by a result; choose another folder")


def _write_classes(folder: Path, h: Hierarchy, ids: Sequence[int]) -> None:
    path = folder / CLASSES
    classes = [
        {"index": index, "name": name, "colour": colour}
        for index, name, colour in sorted(zip(ids, h.leaves, leaf_colours(h).tolist(), strict=True))
    ]
    if path.is_file():
        try:
            held = [(entry["index"], entry["name"]) for entry in json.loads(path.read_text("utf-8"))["classes"]]
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(f"{path}: is not of an earlier prediction; choose another folder") from None
        if held != sorted(zip(ids, h.leaves, strict=True)):
            raise DataError(f"{path}: the folder holds predictions of other classes; choose another folder")
    text = json.dumps({"hierarchy": h.title, "classes": classes}, indent=2, ensure_ascii=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole([path]) as [part]:
            part.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}") from None


def _write(
    target: Prediction,
    h: Hierarchy,
    ids: Sequence[int],
    picture: UInt8[np.ndarray, "h w 3"],
    leaf: UInt8[np.ndarray, "h w"],
    probs: np.ndarray | None,
    names: tuple[str, ...],
) -> None:
    mask = Image.fromarray(np.array(ids, np.uint8)[leaf])
    mask.putpalette(picture_palette(h, ids))
    paths = [path for path in (target.mask, target.overlay, target.probabilities) if path is not None]
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(paths) as parts:
            part = dict(zip(paths, parts, strict=True))
            mask.save(part[target.mask], format="PNG", optimize=False)
            if target.overlay:
                shown = Image.fromarray(blend(picture, leaf, leaf_colours(h)))
                shown.save(part[target.overlay], format="JPEG", quality=JPEG_QUALITY)
            if target.probabilities and probs is not None:
                with part[target.probabilities].open("wb") as file:
                    np.savez(file, probabilities=probs, names=np.array(names))
    except OSError as error:
        raise DataError(f"{target.mask}: cannot be written: {error.strerror or error}") from None
