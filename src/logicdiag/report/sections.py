"""The parts of a report that are numbers: summary, curves, classes, confusion, conflicts, reliability, settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..engine.load import dump_config, plain
from ..experiment.accuracy import read_pseudo
from ..logic.hierarchy import Hierarchy
from .confused import Group, sibling_groups, worst_pairs
from .curves import Line, chart, legend_mark, reliability_chart, thinned
from .html import Content, Markup, element, folded, joined, percent, shaded, table
from .look import validation
from .measure import Measured
from .told import Told

SHARES = {"conflict": "pixels in conflict (%)", "counted": "counted pixels (%)"}
RULES_SHOWN = 12
FAMILIES = {
    "any": "any rule",
    "C": "C (a class implies its parent)",
    "D": "D (a class implies a child)",
    "E": "E (siblings exclude each other)",
}
SMALL_TREE = 30
"""Classes up to which they are shown unfolded."""


# ---- summary ---------------------------------------------------------------------------------------------------------


def summary(runs: Sequence[Told]) -> Markup:
    height = max(told.run.hierarchy.height for told in runs)
    heads = [*(f"level {level}" for level in range(1, height)), "leaves"]
    what = ["run", "method", "psi", "head", "encoder", "seed", "steps", "labelled", "unlabelled"]
    rows = [[told.name, *_described(told)] for told in runs]
    parts = [table("The runs", what, rows, numbers=False)]
    scores: list[list[Content]] = []
    for told in runs:
        for one in (told.last, told.best):
            if one is not None:
                scores.append([f"{told.name}, {one.moment.which}", one.moment.step, *_scores(one, height)])
    if scores:
        head = ["network", "step", *(f"mIoU, {h}" for h in heads), "accuracy", "severity", "violations"]
        parts.append(table(f"{_measured_on(runs)}, in per cent", head, scores))
        parts.append(
            element(
                "p",
                "mIoU is of one confusion matrix over all pixels. Severity is the mean height of the lowest common "
                "ancestor of truth and prediction over the wrong pixels (1: siblings). Violations: pixels whose "
                "outputs break a rule before repair. The best network was chosen on these very images.",
                class_="note",
            )
        )
    return joined(parts)


def _measured_on(runs: Sequence[Told]) -> str:
    """On all of the validation images, or on how many of them."""
    counts = {(len(told.last.images), len(validation(told.run))) for told in runs if told.last is not None}
    if all(some == whole for some, whole in counts):
        return "On the validation images"
    said = " or ".join(f"{some} of {whole}" for some, whole in sorted(counts))
    return f"On {said} validation images, evenly taken (--images all: on every one)"


def _described(told: Told) -> list[Content]:
    c, images = told.run.config, told.run.record.get("images", {})
    psi = "–" if c.method.name == "supervised" else c.psi.name
    psi += f" ({c.psi.strategy})" if psi == "diagnosis" else ""
    steps = f"{_done(told)} of {c.train.steps}"
    return [c.method.name, psi, c.model.head, c.model.encoder, c.train.seed, steps,
            images.get("labeled"), images.get("unlabeled")]  # fmt: skip


def _done(told: Told) -> int:
    return max((line["step"] for line in told.metrics), default=0)


def _scores(one: Measured, height: int) -> list[Content]:
    e = one.evaluation
    levels = [percent(level["miou"]) for level in e["levels"]]
    levels = [*levels[:-1], *["–"] * (height - len(levels)), levels[-1]]
    severity = e["severity"]["mean"]
    broken = e["violations"]
    return [
        *levels,
        percent(e["accuracy"]),
        None if severity is None else f"{severity:.2f}",
        percent(broken["share"]) if broken else None,
    ]


# ---- curves ----------------------------------------------------------------------------------------------------------


def curves(runs: Sequence[Told]) -> Markup:
    keys = list(dict.fromkeys(key for told in runs for line in told.metrics for key in line))
    drawn = [(key, _titled(key), 1.0) for key in keys if key.startswith("loss")]
    drawn += [(key, title, 100.0) for key, title in SHARES.items() if key in keys]
    drawn += [(key, _titled(key), 100.0) for key in sorted(keys) if key.startswith("val/miou_level")]
    drawn += [("val/violations", "validation: pixels that break a rule (%)", 100.0)] * ("val/violations" in keys)
    if not drawn:
        return element("p", "The runs have written no metrics yet.")
    figures = []
    for number, (key, title, scale) in enumerate(drawn):
        lines = [Line(told.name, thinned(told.curve(key, scale)), told.look) for told in runs]
        svg = Markup(chart(title, lines, low=0.0, ident=f"curve{number}"))
        figures.append(element("figure", svg, element("figcaption", title)))
    return joined([legend(runs), element("div", *figures, class_="charts")])


def legend(runs: Sequence[Told]) -> Markup:
    entries = [element("li", Markup(legend_mark(told.look)), told.name) for told in runs]
    return element("ul", *entries, class_="legend")


def _titled(key: str) -> str:
    if key.startswith("val/miou_level"):
        return f"validation mIoU, level {key.removeprefix('val/miou_level')} (%)"
    return "loss" if key == "loss" else f"loss: {key.partition('/')[2].replace('labeled', 'labelled')}"


# ---- classes ---------------------------------------------------------------------------------------------------------


def classes(runs: Sequence[Told]) -> Markup:
    """One table for each hierarchy, the runs side by side; a class has one IoU, that of its own level."""
    parts = []
    for h, mine in by_hierarchy([told for told in runs if told.last is not None]):
        rows: list[list[Content]] = []
        for index, name in enumerate(h.names):
            level = h.depths[index] - 1
            found = [told.last.evaluation["levels"][level]["classes"][name] for told in mine if told.last]
            rows.append(["   " * level + name, h.depths[index], *map(shaded, found)])
        head = ["class", "level", *(told.name for told in mine)]
        parts.append(table("IoU of every class, last network, in per cent", head, rows))
    return joined(parts) if parts else _no_images()


def by_hierarchy(runs: Sequence[Told]) -> Iterator[tuple[Hierarchy, list[Told]]]:
    known: dict[Hierarchy, list[Told]] = {}
    for told in runs:
        known.setdefault(told.run.hierarchy, []).append(told)
    yield from known.items()


def _no_images() -> Markup:
    return element("p", "The runs have no validation images (data.val), so there is nothing to hold them against.")


# ---- confusion -------------------------------------------------------------------------------------------------------


def confusion(told: Told) -> Markup:
    if told.last is None:
        return _no_images()
    h, counts = told.run.hierarchy, told.last.confusion
    top, *groups = (_group(group) for group in sibling_groups(counts, h))
    siblings = element("div", *groups, class_="tables")
    small = len(h.leaves) <= SMALL_TREE
    parts = [top]
    if groups:
        parts.append(siblings if small else folded(f"Among siblings ({len(groups)} groups)", siblings))
    pairs = worst_pairs(counts, h)
    if pairs:
        rows: list[list[Content]] = [
            [
                f"{p.truth} → {p.said}",
                percent(p.share, 1),
                f"{p.pixels:,}",
                p.ancestor or "nothing: another superclass",
                p.height,
            ]
            for p in pairs
        ]
        head = ["truth → prediction", "% of the truth", "pixels", "what unites them", "severity"]
        parts.append(table("The most frequent mistakes among leaves", head, rows))
    return joined(parts)


def _group(group: Group) -> Markup:
    rows = []
    for number, (row, truth) in enumerate(zip(group.counts.tolist(), group.names, strict=True)):
        total = sum(row)
        cells = [shaded(k / total if total else None, place == number) for place, k in enumerate(row)]
        rows.append([truth, f"{total:,}", *cells])
    title = f"Below {group.parent}" if group.parent else "Across superclasses: truth by row, in per cent of its pixels"
    return table(title, ["truth", "pixels", *group.columns], rows)


# ---- conflicts -------------------------------------------------------------------------------------------------------


def conflicts(told: Told) -> Markup:
    if told.last is None:
        return _no_images()
    if not told.last.conflict:
        return element("p", "A flat head predicts leaves alone, so no rule can break.")
    over = told.over_time
    steps = [f"step {one.moment.step}" for one in over]
    rules: list[list[Content]] = []
    for name in told.last.conflict:
        shares = [one.evaluation["violations"] for one in over]
        found = [v["share"] if name == "any" else v["rules"][name] for v in shares]
        rules.append([FAMILIES.get(name, name), *map(shaded, found)])
    parts = [table("Pixels that break a rule, by family, in per cent", ["rules", *steps], rules)]
    fewest, all_of = min(len(one.images) for one in over), len(told.last.images)
    if fewest < all_of:
        text = f"Networks before the last are measured on {fewest} of the {all_of} images, evenly taken."
        parts.append(element("p", text, class_="note"))
    leaves = [[leaf, *(shaded(one.conflict["any"][leaf]) for one in over)] for leaf in told.run.hierarchy.leaves]
    by_class = table("Pixels in conflict, by their true class, in per cent", ["true class", *steps], leaves)
    parts.append(by_class if len(leaves) <= SMALL_TREE else folded("By class", by_class))
    names = list(told.last.conflict)
    rows = [[leaf, *(shaded(told.last.conflict[n][leaf]) for n in names)] for leaf in told.run.hierarchy.leaves]
    both = table("The last network: by true class and family, in per cent", ["true class", *names], rows)
    parts.append(folded("By class and family", both))
    if told.last.broken:
        pixels = told.last.evaluation["pixels"]
        worst = list(told.last.broken.items())[:RULES_SHOWN]
        rows = [[rule, f"{count:,}", percent(count / pixels)] for rule, count in worst]
        head = ["rule", "pixels", "in %"]
        parts.append(table("The rules broken most, last network", head, rows))
    return joined(parts)


def measured_pseudo(told: Told) -> Markup:
    """What `logicdiag pseudo` found on the unlabelled images, if it was asked to; the report opens no hidden mask."""
    found = read_pseudo(told.run.path)
    if not found:
        return Markup("")
    keys = {"before": "right before", "after": "right after", "counted": "counted", "learned": "right of counted",
            "conflict": "in conflict"}  # fmt: skip
    rows = [[f"step {m['step']}", *(percent(m.get(key), 1) for key in keys)] for m in found["moments"]]
    caption = f"Pseudo labels of {found['images']} unlabelled images, as `logicdiag pseudo` measured them, in per cent"
    return table(caption, ["moment", *keys.values()], rows)


# ---- reliability -----------------------------------------------------------------------------------------------------


def reliability(told: Told) -> Markup:
    if told.last is None:
        return _no_images()
    kinds = {
        "posterior": ("Probability of the diagnosis taken, over pixels in conflict", told.last.posterior),
        "confidence": ("Probability of the likeliest leaf, over all pixels", told.last.confidence),
    }
    figures, tables = [], []
    for key, (title, found) in kinds.items():
        if not found.pixels:
            continue
        bins = found.shares()
        points = [(said, right) for count, said, right in bins if count]
        sentence = f"{found.pixels:,} pixels; mean gap between said and right (ECE): {percent(found.error(), 1)} %"
        svg = reliability_chart(title, [Line(told.name, points, told.look)], sentence, f"{key}{told.look}")
        figures.append(element("figure", Markup(svg), element("figcaption", f"{title}: {sentence}")))
        rows = [
            [f"{10 * i} to {10 * i + 10} %", f"{count:,}", percent(said, 1), percent(right, 1)]
            for i, (count, said, right) in enumerate(bins)
        ]
        tables.append(table(title, ["said", "pixels", "said on average, %", "right, %"], rows))
    return joined([element("div", *figures, class_="charts"), folded("The numbers", *tables)])


# ---- settings --------------------------------------------------------------------------------------------------------


def settings(runs: Sequence[Told]) -> Markup:
    parts = []
    flat = [dict(_flat(plain(told.run.config))) for told in runs]
    differing = [key for key in flat[0] if any(one.get(key) != flat[0][key] for one in flat)]
    if len(runs) > 1 and differing:
        rows: list[list[Content]] = [[key, *(_value(one.get(key)) for one in flat)] for key in differing]
        head = ["setting", *(told.name for told in runs)]
        parts.append(table("Settings that differ", head, rows, numbers=False))
    versions = list(dict.fromkeys(key for told in runs for key in told.run.record.get("versions", {})))
    rows = [[key, *(told.run.record.get("versions", {}).get(key) for told in runs)] for key in versions]
    for key in ("started", "device", "data", "parameters"):
        rows.append([key, *(told.run.record.get(key) for told in runs)])
    for key in ("labeled", "unlabeled", "val"):
        lists = [told.run.record.get("lists", {}).get(key) for told in runs]
        rows.append([f"list {key}", *(f"{x['count']} images, {x['fingerprint'][:8]}" if x else None for x in lists)])
    parts.append(table("Versions and data", ["what", *(told.name for told in runs)], rows, numbers=False))
    for told in runs:
        parts.append(
            folded(
                f"All settings of {told.name}", element("pre", dump_config(told.run.config), tabindex=0), printed=False
            )
        )
    return joined(parts)


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _flat(below, f"{key}.{name}" if key else name)
    else:
        yield key, value


def _value(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
