"""What is asked of a run while one looks at it: an image under some rules, and a pixel of it."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch

from ..data.dataset import Photo
from ..engine.run import RULES, Run
from ..errors import OptionError, TangledRulesWarning
from ..kernels.layout import ROOT
from ..logic.diagnosis import STRATEGIES, Diagnoser
from ..logic.formula import written
from ..logic.knowledge import FAMILIES, KnowledgeBase
from ..palette import leaf_colours
from ..report.look import Look, Viewer
from ..report.pixel import MOST, Pixel, explain_pixel, flat
from .images import Shelf
from .kept import Kept

NETWORK_BYTES, REPAIR_BYTES = 1 << 30, 3 << 29
"""Of probabilities and of repairs that are kept. Two of an image share its probabilities, which count in both."""
READERS = 32
"""Sets of rules that are kept compiled."""
MOST_RULES = 20_000
"""Characters of rule text."""
MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Setting:
    """What a repair depends on, beside the image. It is part of every question, so that any number of pages may ask."""

    rules: str
    families: str
    strategy: str
    seed: int


@dataclass(frozen=True)
class Seen:
    """An image under a setting."""

    name: str
    viewer: Viewer
    look: Look
    own: Look
    """The same image under the rules, strategy and seed of the run itself."""
    notes: tuple[str, ...]
    """What the library warned of."""

    @property
    def knowledge(self) -> KnowledgeBase:
        assert self.viewer.diagnoser is not None
        return self.viewer.diagnoser.kb


class Explorer:
    """A network of a run, images, and what was found out about them. Safe to be asked from several threads."""

    def __init__(self, viewer: Viewer, photos: Sequence[Photo]) -> None:
        if viewer.diagnoser is None:
            raise flat(viewer.run)
        self.viewer, self.shelf = viewer, Shelf(photos)
        self.own = own_setting(viewer.run, viewer.seed)
        self._looks = Kept[Look](NETWORK_BYTES)
        self._seen = Kept[Seen](REPAIR_BYTES)
        self._viewers = Kept[tuple[Viewer, tuple[str, ...]]](READERS)
        self._working = Lock()
        """Held while the network or the rules work on a whole image; a pixel of what is known does not wait for it."""

    def facts(self) -> dict[str, Any]:
        """What a page needs to know once."""
        run = self.viewer.run
        h = run.hierarchy
        colours = dict(zip(h.leaves, leaf_colours(h).tolist(), strict=True))
        return {
            "run": run.path.resolve().name,
            "checkpoint": self.viewer.which,
            "nodes": [
                {"name": name, "parent": None if parent == ROOT else parent, "colour": colours.get(name)}
                for name, parent in zip(h.names, h.parents, strict=True)
            ],
            "images": [{"id": key, "name": name} for key, name in self.shelf.names().items()],
            "families": FAMILIES,
            "strategies": STRATEGIES,
            "threshold": run.config.psi.threshold,
            "setting": vars(self.own),
            "example": f"forall x: ~{written(h.leaves[-1])}(x)",
        }

    def see(self, image: str, setting: Setting) -> Seen:
        """The image under the setting, from memory if it was seen before."""
        photo = self.shelf.photo(image)
        if (found := self._seen.get((image, setting))) is not None:
            return found
        with self._working:
            if (found := self._seen.get((image, setting))) is not None:
                return found
            viewer, notes = self._under(setting)
            own = self._look(image, photo)
            look = viewer.repaired(own)
            seen = Seen(photo.name, viewer, look, own, notes)
            self._seen.put((image, setting), seen, _bytes(look))
            return seen

    def pixel(self, image: str, setting: Setting, at: tuple[int, int], most: int = MOST) -> Pixel:
        """With at most so many diagnoses: a thousand take longer than a frame."""
        if not 1 <= most <= MOST:
            raise OptionError(f"most is {most}, expected a whole number from 1 to {MOST}")
        seen = self.see(image, setting)
        return explain_pixel(seen.viewer, seen.look, at, seen.name, most)

    def _look(self, image: str, photo: Photo) -> Look:
        found = self._looks.get(image)
        if found is None:
            found = self.viewer.look(photo.image())
            self._looks.put(image, found, _bytes(found))
        return found

    def _under(self, setting: Setting) -> tuple[Viewer, tuple[str, ...]]:
        found = self._viewers.get(setting)
        if found is None:
            found = self._read(setting)
            self._viewers.put(setting, found, 1)
        return found

    def _read(self, setting: Setting) -> tuple[Viewer, tuple[str, ...]]:
        if len(setting.rules) > MOST_RULES:
            raise OptionError(f"the rules have {len(setting.rules)} characters, at most {MOST_RULES} are read")
        if not 0 <= setting.seed <= MOST_SEED:
            raise OptionError(f"seed is {setting.seed}, expected a whole number from 0 to {MOST_SEED}")
        run = self.viewer.run
        psi = run.config.psi
        kb = KnowledgeBase(run.hierarchy, setting.families, setting.rules, psi.root)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", TangledRulesWarning)
            diagnoser = Diagnoser(kb, setting.strategy, psi.q, psi.connectives, psi.quantifier, psi.budget)
        notes = [str(one.message) for one in told if issubclass(one.category, TangledRulesWarning)]
        notes += [str(finding) for finding in kb.lint()] if kb.rules else []
        return self.viewer.under(diagnoser, setting.seed), tuple(notes)


def passing(pixel: Pixel, most: int) -> dict[str, Any]:
    """What is told of a pixel that is only passed: the first broken rules, and how many there are."""
    told = pixel.as_dict()
    return {**told, "broken": told["broken"][:most], "breaks": len(told["broken"])}


def own_setting(run: Run, seed: int) -> Setting:
    """The rules, families and strategy that the run was made with; the rules as text."""
    psi = run.config.psi
    if isinstance(psi.rules, str):
        rules = (run.path / RULES).read_text("utf-8")
    else:
        rules = "".join(f"{textwrap.dedent(rule).strip()}\n" for rule in psi.rules or [])
    return Setting(rules, run.knowledge.families, psi.strategy, seed)


def _bytes(look: Look) -> int:
    held: list[torch.Tensor] = [look.probs, look.chosen, look.confidence, look.sure, look.before]
    if look.result is not None:
        held += [value for value in vars(look.result).values() if isinstance(value, torch.Tensor)]
    return int(look.image.nbytes) + sum(tensor.nbytes for tensor in held)
