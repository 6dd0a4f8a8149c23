"""What the student learns from an unlabelled view, and what psi is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int64, Integer, Shaped
from torch import Tensor

from ..data.views import partner
from ..plan import Plan, Planned


@dataclass(frozen=True)
class Target:
    """Per pixel a leaf, or one label per concept where a leaf does not say it all; and how much the pixel counts."""

    weight: Float[Tensor, "b h w"]
    """0: the pixel teaches nothing."""
    leaf: Integer[Tensor, "b h w"] | None = None
    """Index into the hierarchy's leaves; of any whole type, below 0 where a pixel does not count."""
    labels: Float[Tensor, "b n h w"] | None = None
    """From 0 to 1, in channel order; taken instead of `leaf` where given."""
    sure: Integer[Tensor, "b h w"] | None = None
    """The channel of a concept on the path to `leaf`: what is below it is not sure, and not learned."""

    def cut(self, start: int, stop: int) -> Target:
        """Of some of the views."""
        return self._each(lambda tensor: tensor[start:stop])

    def mixed(self, boxes: Bool[Tensor, "b h w"]) -> Target:
        """CutMix: inside of the boxes, the partner's."""

        def mix(tensor: Tensor) -> Tensor:
            return torch.where(boxes if tensor.dim() == boxes.dim() else boxes[:, None], partner(tensor), tensor)

        return self._each(mix)

    def at(self, places: Int64[Tensor, "b points"]) -> Target:
        """Of some pixels of each view, which then have one dimension."""

        def taken(tensor: Tensor) -> Tensor:
            if tensor.dim() == 3:
                return tensor.flatten(1).gather(1, places)
            return at_points(tensor, places)

        return self._each(taken)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Target:
        tensors = {part.name: getattr(self, part.name) for part in fields(self)}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items() if tensor is not None})

    def only(self, pixels: Bool[Tensor, "b h w"]) -> Target:
        """The others teach nothing."""
        return replace(self, weight=self.weight * pixels)

    def leaves(self, channels: Integer[Tensor, " leaves"]) -> Int64[Tensor, "b h w"]:
        """A leaf for each pixel: its own, or that of the greatest label, which stand in these channels."""
        if self.labels is not None:
            return self.labels.index_select(1, channels).argmax(1)
        assert self.leaf is not None
        return self.leaf.long()


def at_points(tensor: Shaped[Tensor, "b c h w"], places: Int64[Tensor, "b points"]) -> Shaped[Tensor, "b c points"]:
    """Some pixels of each view, by their places in it."""
    return tensor.flatten(2).gather(2, places[:, None].expand(-1, tensor.shape[1], -1))


Statistics = dict[str, tuple[Tensor, Tensor]]
"""Name -> (sum, count): shares that add up over micro-batches, steps and processes."""


@dataclass(frozen=True)
class Prediction:
    """What a network says of some views, which pixels are meant, and what psi has planned for them."""

    logits: Float[Tensor, "b c h w"]
    """In the model's own type of number; psi makes probabilities of them, in float32."""
    valid: Bool[Tensor, "b h w"]
    plan: Planned = field(default_factory=dict)
    heard: Float[Tensor, "b n"] | None = None
    """What a witness says of the images (`data/witness.py`): the log of a weight for each concept."""
    by_tree: Float[Tensor, "b c h w"] | None = None
    """Off these the odds among siblings are read where the tree decides; None: off `logits`."""

    @property
    def deciding(self) -> Float[Tensor, "b c h w"]:
        return self.logits if self.by_tree is None else self.by_tree

    def saying(self, logits: Float[Tensor, "b c h w"], by_tree: Float[Tensor, "b c h w"] | None) -> Prediction:
        """The same views, of which other outputs are taken."""
        return replace(self, logits=logits, by_tree=by_tree)


class Psi(Protocol):
    """The pseudo label processor: a teacher's prediction of weak views -> targets of the same pixels.

    `labeled` is what the student says of the labelled views, for those who measure something over the whole batch.
    """

    @property
    def waits(self) -> bool:
        """Whether a call on a GPU makes the host wait for numbers, so that no step with it can be captured."""
        ...

    def plan(self, step: int, slots: Sequence[int]) -> Plan:
        """What is drawn for the views of a step, each at its place of the global batch."""
        ...

    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]: ...


class Around:
    """What a psi that changes another has of it."""

    def __init__(self, psi: Psi) -> None:
        self.psi = psi

    @property
    def waits(self) -> bool:
        return self.psi.waits

    def plan(self, step: int, slots: Sequence[int]) -> Plan:
        return self.psi.plan(step, slots)


def counted(target: Target, valid: Bool[Tensor, "b h w"]) -> Statistics:
    """The share of pixels that count, each as much as it weighs."""
    return {"counted": ((target.weight * valid).sum(), valid.sum())}
