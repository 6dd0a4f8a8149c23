"""An image under some rules as numbers and as pictures of the image's own size."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from PIL import Image
from torch import Tensor

from ..errors import OptionError, choose, hint
from ..logic.clauses import Clause, family_clauses
from ..logic.knowledge import FAMILIES, KnowledgeBase
from ..logic.repair import Result
from ..report.pictures import labels_shown
from .session import Seen

LISTED = 12
"""Single rules named, those that most pixels break."""
ANY = "any"
MARKED = (230, 0, 90, 255)
SCALE = ((0, 32, 76), (39, 73, 110), (94, 102, 110), (153, 143, 117), (212, 187, 96), (255, 234, 70))
"""Probabilities from 0 to 1: cividis, which looks the same to the colour blind. The page draws it, too."""

Picture = UInt8[np.ndarray, "h w c"]


def summary(seen: Seen) -> dict[str, Any]:
    """How far the outputs break the rules, and what the repair does about it; in pixels."""
    look, kb, result = seen.look, seen.knowledge, _result(seen)
    height, width = look.image.shape[:2]
    conflict = result.conflict[0]
    labels = result.observed[0].movedim(0, -1)[conflict]  # the others break nothing
    own = seen.own.result
    assert own is not None
    return {
        "size": [width, height],
        "conflict": int(conflict.sum()),
        "parts": [{"name": name, "pixels": int((~part.is_consistent(labels)).sum())} for name, part in _parts(kb)],
        "broken": [
            {"rule": rule, "pixels": count}
            for rule, count in sorted(kb.count_broken(labels).items(), key=lambda item: -item[1])[:LISTED]
        ],
        "without_leaf": int((result.leaf < 0).sum()),
        "unlike_prediction": int((result.leaf[0] != look.chosen).sum()),
        "unlike_run": int((result.revised != own.revised).any(1).sum()),
        "certainty": float(result.log_prob[0][conflict].exp().mean()) if conflict.any() else None,
        "notes": list(seen.notes),
    }


def draw(seen: Seen, what: str, of: str = "") -> bytes:
    """A map as PNG. `of`: for `conflict`, any, a family or a rule; for `probability`, a class."""
    return _png(MAPS[choose("map", what, MAPS)](seen, of))


def photo(pixels: UInt8[np.ndarray, "h w 3"]) -> bytes:
    return _png(pixels)


def _prediction(seen: Seen, of: str) -> Picture:
    return labels_shown(seen.look.chosen, seen.knowledge.hierarchy)


def _before(seen: Seen, of: str) -> Picture:
    return labels_shown(seen.look.before, seen.knowledge.hierarchy, seen.look.conflict)


def _repair(seen: Seen, of: str) -> Picture:
    return labels_shown(_result(seen).leaf[0], seen.knowledge.hierarchy)


def _threshold(seen: Seen, of: str) -> Picture:
    return labels_shown(seen.look.sure, seen.knowledge.hierarchy)


def _conflict(seen: Seen, of: str) -> Picture:
    """Marked where a rule is broken, else nothing, so that the image is seen."""
    return _marked(broken(seen, of or ANY))


def _changed(seen: Seen, of: str) -> Picture:
    """Marked where the labels are not those that the run's own rules give."""
    own = seen.own.result
    assert own is not None
    return _marked((_result(seen).revised != own.revised).any(1)[0])


def _probability(seen: Seen, of: str) -> Picture:
    names = seen.knowledge.hierarchy.names
    if of not in names:
        raise OptionError(f"{of[:80]!r} is not in {seen.knowledge.hierarchy.title}{hint(of[:80], names)}")
    values = seen.look.probs[0, names.index(of)].float().cpu().numpy()
    picture: Picture = _scale()[(values * 255).round().astype(np.uint8)]
    return picture


MAPS: dict[str, Callable[[Seen, str], Picture]] = {
    "prediction": _prediction,
    "before": _before,
    "repair": _repair,
    "conflict": _conflict,
    "changed": _changed,
    "probability": _probability,
    "threshold": _threshold,
}


def broken(seen: Seen, of: str) -> Bool[Tensor, "h w"]:
    """The pixels that break any rule, those of a family, or a single rule by its text."""
    result, kb = _result(seen), seen.knowledge
    found = result.conflict[0].clone()
    if of == ANY:
        return found
    labels = result.observed[0].movedim(0, -1)[found]
    parts = dict(_parts(kb))
    if of in parts:
        holds = parts[of].is_consistent(labels)
    else:
        single = dict(family_clauses(kb))
        if of not in single:
            offered = [ANY, *parts, *single]
            raise OptionError(f"{of[:80]!r} is no rule that is in force{hint(of[:80], offered)}")
        holds = _clause_holds(single[of], labels, kb)
    found[found.clone()] = ~holds
    return found


def _parts(kb: KnowledgeBase) -> list[tuple[str, KnowledgeBase]]:
    """The families and the user's rules, each by itself."""
    families = [(family, KnowledgeBase(kb.hierarchy, family, root=kb.root)) for family in FAMILIES]
    rules = [(rule.name, KnowledgeBase(kb.hierarchy, "", [rule])) for rule in kb.pixel_rules]
    return [(name, part) for name, part in families if name in kb.families] + rules


def _clause_holds(clause: Clause, labels: Bool[Tensor, "pixels n"], kb: KnowledgeBase) -> Bool[Tensor, " pixels"]:
    literals = [labels[:, kb.hierarchy.index(name)] == value for name, value in clause]
    return torch.stack(literals).any(0)


def _result(seen: Seen) -> Result:
    assert seen.look.result is not None
    return seen.look.result


def _marked(where: Bool[Tensor, "h w"]) -> Picture:
    picture = np.zeros((*where.shape, 4), np.uint8)
    picture[where.cpu().numpy()] = MARKED
    return picture


def _scale() -> UInt8[np.ndarray, "256 3"]:
    places = np.linspace(0, 255, len(SCALE))
    channels = [np.interp(np.arange(256), places, channel) for channel in zip(*SCALE, strict=True)]
    table: UInt8[np.ndarray, "256 3"] = np.stack(channels, 1).round().astype(np.uint8)
    return table


def _png(picture: Picture) -> bytes:
    memory = io.BytesIO()
    Image.fromarray(picture).save(memory, format="PNG", compress_level=1)
    return memory.getvalue()
