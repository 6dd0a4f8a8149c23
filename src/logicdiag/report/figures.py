"""Figures for papers, as PNG or PDF. Needs matplotlib (`pip install "logicdiag[plots]"`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine.figure import STRIPE
from ..engine.inference import InferenceConfig
from ..engine.run import Run
from ..errors import ConfigError, OptionError, RunError, hint
from ..files import Progress, written_whole
from ..logic.hierarchy import Hierarchy
from ..palette import NO_LEAF, leaf_colours
from .look import Look, Viewer, find_image, truth_of
from .measure import measure
from .pictures import labels_shown

FORMATS = ("png", "pdf")
DPI = 200
PANEL = 2.1
"""Inches of a picture's width."""
STYLE = {"font.size": 8, "pdf.fonttype": 42, "svg.fonttype": "none"}
"""Text stays text in a PDF."""
LINE = 0.22
"""Inches of a line of the hierarchy."""
COLOURS = "cividis"
"""Reads alike with every kind of colour vision, and in gray."""
BLANK = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
"""Behind a name, so that the line to its children begins after it."""
DARK = 0.55
"""Below it a node's colour is so dark that its number is white."""


def draw_image(
    run: Run,
    name: str,
    out: Path,
    which: str = "last",
    device: torch.device | str | None = None,
    precision: str | None = None,
    inference: InferenceConfig | None = None,
) -> None:
    """An image, what the outputs say, the repair, what a threshold keeps, the truth if it is known, the conflicts."""
    kind = check_name(out)
    plt = _matplotlib()
    photo = find_image(run, name)
    look = Viewer(run, which, device, precision, inference).look(photo.image())
    truth = truth_of(photo)
    panels = _panels(look, run.hierarchy, run.config.psi.threshold)
    if truth is not None:
        panels.insert(-1 if look.conflict is not None else len(panels), ("truth", labels_shown(truth, run.hierarchy)))
    height, width = look.image.shape[:2]
    h = run.hierarchy
    seen = _seen(look, truth)
    rows = -(-(len(seen) + 2) // 6)
    size = (PANEL * len(panels), PANEL * height / width + 0.35 + 0.2 * rows)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
        for axis, (title, picture) in zip(axes[0], panels, strict=True):
            axis.imshow(picture, interpolation="nearest")
            axis.set_title(title, fontsize=8)
            axis.axis("off")
        patches = [_patch(plt, h.leaves[leaf], leaf_colours(h)[leaf] / 255) for leaf in seen]
        if look.conflict is not None:
            patches.append(_patch(plt, "in conflict", np.array(STRIPE) / 255, "////"))
        patches.append(_patch(plt, "none", np.array(NO_LEAF) / 255))
        figure.legend(handles=patches, loc="outside lower center", ncols=6, frameon=False, fontsize=7)
        _save(plt, figure, out, kind)


def _panels(look: Look, h: Hierarchy, threshold: float) -> list[tuple[str, NDArray[np.uint8]]]:
    panels: list[tuple[str, NDArray[np.uint8]]] = [("image", look.image)]
    if look.conflict is None or look.after is None:
        return [
            *panels,
            ("prediction", labels_shown(look.chosen, h)),
            (f"threshold {threshold:g}", labels_shown(look.sure, h)),
        ]
    share = float(look.conflict.float().mean())
    gray = np.where(look.conflict.cpu().numpy()[..., None], np.uint8(0), np.uint8(235))
    return [
        *panels,
        ("before", labels_shown(look.before, h, look.conflict)),
        ("after repair", labels_shown(look.after, h)),
        (f"threshold {threshold:g}", labels_shown(look.sure, h)),
        (f"in conflict (black): {100 * share:.1f} %", np.repeat(gray, 3, axis=2)),
    ]


def _seen(look: Look, truth: torch.Tensor | None) -> list[int]:
    """The leaves that some picture shows."""
    maps = [look.before, look.sure, *([] if look.after is None else [look.after]), *([] if truth is None else [truth])]
    return [leaf for leaf in torch.cat([one.cpu().unique() for one in maps]).unique().tolist() if leaf >= 0]


def _patch(plt: Any, name: str, colour: Any, hatch: str | None = None) -> Any:
    ink = "black" if hatch is None else "white"
    return plt.Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor=ink, linewidth=0.4, hatch=hatch, label=name)


# ---- the hierarchy ---------------------------------------------------------------------------------------------------


def draw_hierarchy(
    run: Run,
    out: Path,
    which: str = "last",
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> None:
    """The tree from left to right; every class with its IoU on the validation images, in per cent."""
    kind = check_name(out)
    plt = _matplotlib()
    found = {one.moment.which: one for one in measure(run, device=device, progress=progress)}
    if which not in found:
        what = "no validation images (data.val)" if not found else f"no {which}.safetensors"
        raise RunError(f"{run.path}: the run has {what}, so there is no IoU to draw")
    levels = found[which].evaluation["levels"]
    h = run.hierarchy
    iou = {name: levels[h.depths[i] - 1]["classes"][name] for i, name in enumerate(h.names)}
    rows = places(h)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(1.9 * h.height + 0.6, LINE * len(h.leaves) + 0.5), layout="constrained")
        shades = plt.get_cmap(COLOURS)
        for index, name in enumerate(h.names):
            x, y = h.depths[index] - 1, rows[index]
            for kid in h.child_indices[index]:
                axis.plot((x + 0.1, x + 0.86, x + 0.86, x + 1), (y, y, rows[kid], rows[kid]), "k-", linewidth=0.6)
            share = iou[name]
            known = share is not None and not math.isnan(share)
            box = {"facecolor": shades(share) if known else "white", "edgecolor": "black", "linewidth": 0.4, "pad": 1.6}
            said = f"{100 * share:4.1f}" if known else "  – "
            ink = "white" if known and share < DARK else "black"
            axis.text(x, y, said, bbox=box, color=ink, va="center", ha="left", family="monospace", fontsize=7)
            axis.text(x + 0.2, y, name, va="center", ha="left", fontsize=8, bbox=BLANK)
        axis.set(xlim=(-0.05, h.height), ylim=(len(h.leaves) - 0.3, -0.7))
        axis.set_title(f"IoU in per cent, {which} network", fontsize=8, loc="left")
        axis.axis("off")
        _save(plt, figure, out, kind)


def places(h: Hierarchy) -> list[float]:
    """The line of every class: leaves one below the other, a parent in the middle of its children.

    >>> places(Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None}))
    [0.5, 0.0, 1.0, 2.0]
    """
    rows = [0.0] * len(h)
    for line, leaf in enumerate(h.leaf_indices):
        rows[leaf] = float(line)
    for index in reversed(range(len(h))):  # children stand after their parents
        if kids := h.child_indices[index]:
            rows[index] = (rows[kids[0]] + rows[kids[-1]]) / 2
    return rows


# ---- files -----------------------------------------------------------------------------------------------------------


def check_name(out: Path) -> str:
    kind = out.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise OptionError(f"--out is {str(out)!r}, expected a name that ends with .png or .pdf{hint(kind, FORMATS)}")
    if out.is_dir():
        raise OptionError(f"--out is {str(out)!r}, a folder, expected a file to write")
    return kind


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError('figures need matplotlib; install it with: pip install "logicdiag[plots]"') from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _save(plt: Any, figure: Any, out: Path, kind: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with written_whole([out]) as [part]:
            figure.savefig(part, format=kind, dpi=DPI)
    except OSError as error:
        raise RunError(f"{out}: the figure cannot be written: {error.strerror}") from None
    finally:
        plt.close(figure)
