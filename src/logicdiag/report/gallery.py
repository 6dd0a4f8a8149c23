"""The parts of a report that are pictures: pseudo labels across training, and the images that came out worst."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from ..data.dataset import Masked, evenly
from ..logic.hierarchy import Hierarchy
from ..palette import leaf_colours
from .html import Content, Markup, element, folded, joined, percent, picture
from .look import Look, Viewer, truth_of, validation
from .measure import Measured
from .pictures import in_words, label_picture, mistake_picture, photo_picture, uri
from .told import Told

MOMENTS = 4
LEGEND_OPEN = 40
"""Classes up to which a legend is shown unfolded."""


def pseudo_labels(told: Told, images: int, device: torch.device | str | None) -> Markup:
    """Validation images, whose truth may be opened: what psi makes of them at several moments of the run."""
    items = evenly(validation(told.run), images)
    if not items:
        return element("p", "The run has no validation images (data.val).")
    over = told.over_time
    chosen = [*evenly(over[:-1], MOMENTS - 1), over[-1]]
    h = told.run.hierarchy
    photos = {item.name: item.image() for item in items}
    columns: dict[str, list[Markup]] = {item.name: [] for item in items}
    for one in chosen:
        viewer = Viewer(told.run, one.moment.which, device)
        for item in items:
            look = viewer.look(photos[item.name])
            columns[item.name].append(_moment(look, one, h, told.run.config.psi.threshold))
    parts: list[Content] = [class_legend(h)]
    for item in items:
        truth = truth_of(item)
        assert truth is not None
        photo = photo_picture(photos[item.name])
        first = [
            picture(uri(photo, photo=True), f"The image {item.name}", "image", photo.size),
            _labels(truth, h, "truth", "not labelled"),
        ]
        shown = [element("div", *first, class_="column"), *columns[item.name]]
        parts += [element("h4", f"Image {item.name}"), element("div", *shown, class_="row")]
    return joined(parts)


def _moment(look: Look, one: Measured, h: Hierarchy, threshold: float) -> Markup:
    counted = float((look.sure >= 0).float().mean())
    step = f"step {one.moment.step}"
    shown = []
    if look.conflict is not None and look.after is not None:
        share = float(look.conflict.float().mean())
        caption = f"{step}, before: {percent(share, 1)} % in conflict"
        shown.append(_labels(look.before, h, caption, "in conflict", look.conflict))
        shown.append(_labels(look.after, h, f"{step}, after repair", "no single leaf"))
    else:
        shown.append(_labels(look.before, h, f"{step}, likeliest leaf", "none"))
    caption = f"{step}, threshold {threshold:g}: {percent(counted, 1)} % counted"
    shown.append(_labels(look.sure, h, caption, "not counted"))
    return element("div", *shown, class_="column")


def _labels(leaf: Tensor, h: Hierarchy, caption: str, nothing: str, stripes: Tensor | None = None) -> Markup:
    shown = label_picture(leaf, h, stripes)
    return picture(uri(shown), f"{caption}: {in_words(leaf, h, nothing)}", caption, shown.size)


def class_legend(h: Hierarchy) -> Markup:
    entries = []
    for name, (red, green, blue) in zip(h.leaves, leaf_colours(h).tolist(), strict=True):
        swatch = Markup(f'<span class="swatch" style="background:rgb({red},{green},{blue})" aria-hidden="true"></span>')
        entries.append(element("li", swatch, name))
    shown = element("ul", *entries, class_="legend")
    note = element("p", "Striped: the outputs break a rule. Pale: no leaf, or not counted.", class_="note")
    return joined([shown if len(h.leaves) <= LEGEND_OPEN else folded("The colours of the classes", shown), note])


def worst_images(told: Told, count: int, device: torch.device | str | None) -> Markup:
    """Those with the fewest right pixels, by the last network."""
    if told.last is None:
        return element("p", "The run has no validation images (data.val).")
    facts = told.last.images
    scored = sorted((value["right"], name) for name, value in facts.items() if value["right"] is not None)
    items: dict[str, Masked] = {item.name: item for item in validation(told.run)}
    viewer, h = Viewer(told.run, told.last.moment.which, device), told.run.hierarchy
    parts = []
    for right, name in scored[:count]:
        image = items[name].image()
        truth = truth_of(items[name])
        assert truth is not None
        chosen = viewer.predict(image).cpu()
        photo, wrong = photo_picture(image), mistake_picture(chosen, truth)
        in_conflict = facts[name].get("conflict")
        said = "" if in_conflict is None else f", {percent(in_conflict, 1)} % in conflict"
        caption = f"{name}: {percent(right, 1)} % right{said}"
        shown = [
            picture(uri(photo, photo=True), f"The image {name}", caption, photo.size),
            _labels(chosen, h, "prediction", "none"),
            _labels(truth, h, "truth", "not labelled"),
            _mistakes(wrong, 1 - (right or 0.0)),
        ]
        parts.append(element("div", *shown, class_="row"))
    return joined(parts)


def _mistakes(shown: Image.Image, share: float) -> Markup:
    alt = f"mistakes: {percent(share, 1)} % of the pixels are wrong, drawn dark and striped"
    return picture(uri(shown), alt, "mistakes (dark)", shown.size)
