"""Small stand-ins for a model, items and a run."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import logicdiag as ld
from logicdiag.data.dataset import Dataset, ListRecord
from logicdiag.engine.inference import InferenceConfig
from logicdiag.errors import RunError

TREE = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": ["car", "bus"], "sky": None})


class Echo(nn.Module):
    """Reads the leaf off the image: red is 40 times its index. `shift` says a later leaf instead."""

    def __init__(self, h=TREE, head="hierarchical", shift=0):
        super().__init__()
        self.h, self.head, self.shift = h, head, shift

    def forward(self, image):
        leaf = (image[:, 0] * 255 / 40).round().long() + self.shift
        leaf = leaf % len(self.h.leaves)
        hot = nn.functional.one_hot(leaf, len(self.h.leaves)).movedim(-1, 1).float() * 8 - 4
        if self.head == "flat":
            return hot
        nodes = torch.full((len(image), len(self.h), *image.shape[-2:]), -4.0)
        for channel, index in enumerate(self.h.leaf_indices):
            for node in self.h.path_indices(index):
                nodes[:, node] = torch.maximum(nodes[:, node], hot[:, channel])
        return nodes

    def probs(self, logits):
        return logits.sigmoid() if self.head == "hierarchical" else logits.softmax(1)

    def leaf_logits(self, logits):
        return logits[:, list(self.h.leaf_indices)] if self.head == "hierarchical" else logits


class Bright(nn.Module):
    """A classifier: 0 is red, 1 is green, 2 is blue. Notes what it is shown."""

    def __init__(self):
        super().__init__()
        self.classes, self.seen = 3, []

    def forward(self, image):
        self.seen.append(tuple(image.shape))
        return image.mean((2, 3)) * 4


@dataclass(frozen=True)
class Item:
    """An image that shows its own mask."""

    name: str
    truth: np.ndarray = field(repr=False)
    shown: np.ndarray | None = None

    def image(self):
        shown = self.truth if self.shown is None else self.shown
        return np.stack([(shown * 40).astype(np.uint8)] * 3, -1)

    def mask(self):
        return self.truth


def items(count, seed=0, size=None):
    """Masks at random, some of their pixels ignored; the picture shows another class here and there."""
    rng, leaves = np.random.default_rng(seed), len(TREE.leaves)
    out = []
    for number in range(count):
        shape = size or tuple(int(n) for n in rng.integers(20, 60, 2))
        shown = rng.integers(0, leaves, shape).astype(np.uint8)
        truth = np.where(rng.random(shape) < 0.3, rng.integers(0, leaves, shape), shown).astype(np.uint8)
        truth[rng.random(shape) < 0.1] = 255
        out.append(Item(f"i{number}", truth, shown))
    return tuple(out)


class Run:
    """What `open_run` gives; the best checkpoint is right, the last says the next leaf."""

    def __init__(self, best=True, val=3):
        self.record, self.ids = {"lists": {}}, tuple(range(len(TREE.leaves)))
        self.config = SimpleNamespace(inference=InferenceConfig(), train=SimpleNamespace(precision="bf16"))
        self.hierarchy, self.knowledge, self.best, self.val = TREE, ld.KnowledgeBase(TREE), best, val

    def model(self, which, device):
        if which == "best" and not self.best:
            raise RunError("the run has no best checkpoint")
        return Echo(shift=0 if which == "best" else 1).eval()

    def dataset(self):
        val = items(self.val)
        record = ListRecord("splits/val.txt", len(val), "0" * 64, "a published list")
        return Dataset("small", TREE, (), (), val, {"val": record}, lambda name: items(2, seed=9))
