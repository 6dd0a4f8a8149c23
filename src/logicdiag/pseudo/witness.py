"""Any psi, told by a witness: its weights multiply the teacher's odds among the children of one concept.

A network that read few labels takes a cat for a dog, and no rule of the tree objects. Somebody who knows the image may:
given that a pixel is of an animal, the odds that it is of a cat, by the network and by the witness, are multiplied, as
those of two witnesses who know nothing of each other. How likely `animal` is stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..logic.hierarchy import Hierarchy
from ..logic.leaves import Leaves
from .target import Around, Prediction, Psi, Statistics, Target


class Witnessed(Around):
    """`concepts` are those that the witness weighs against their siblings."""

    def __init__(self, psi: Psi, hierarchy: Hierarchy, concepts: Sequence[str], head: str) -> None:
        super().__init__(psi)
        self.weighing = Weighing(hierarchy, concepts, head)

    @torch.no_grad()
    def __call__(self, unlabeled: Prediction, labeled: Prediction) -> tuple[Target, Statistics]:
        if unlabeled.heard is None:
            return self.psi(unlabeled, labeled)
        if self.weighing.device != unlabeled.logits.device:  # once: every move makes the device wait
            self.weighing.to(unlabeled.logits.device)
        return self.psi(unlabeled.saying(self.weighing(unlabeled.logits.float(), unlabeled.heard)), labeled)


class Weighing(nn.Module):
    """Logits of either head, and what is heard -> logits.

    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]]).view(1, 4, 1, 1)  # animal, bird, cat, sky
    >>> heard = torch.tensor([[0.0, 3.0, 1.0, 0.0]]).log()  # a bird rather than a cat, three to one
    >>> weighed = Weighing(h, ["bird", "cat"], "hierarchical")(logits, heard.nan_to_num(neginf=0))
    >>> [round(float(odds), 3) for odds in weighed.exp().flatten() / logits.exp().flatten()]
    [1.0, 1.5, 0.5, 1.0]
    """

    def __init__(self, hierarchy: Hierarchy, concepts: Sequence[str], head: str) -> None:
        super().__init__()
        self.head, self.groups = head, 0
        leaves = Leaves(hierarchy)
        # for each concept 1 where a channel is of it, or of something below it
        below = leaves.above.T if head == "hierarchical" else leaves.under
        for parent in dict.fromkeys(hierarchy.parent(name) for name in concepts):
            group = [hierarchy.index(name) for name in concepts if hierarchy.parent(name) == parent]
            self.register_buffer(f"group_{self.groups}", torch.tensor(group), persistent=False)
            self.register_buffer(f"below_{self.groups}", below[group].clone(), persistent=False)
            self.groups += 1

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device

    def forward(self, logits: Float[Tensor, "b c h w"], heard: Float[Tensor, "b n"]) -> Float[Tensor, "b c h w"]:
        weighed = logits
        for number in range(self.groups):
            group, below = self.get_buffer(f"group_{number}"), self.get_buffer(f"below_{number}")
            weights = heard.index_select(1, group)[:, :, None, None]
            odds = self._odds(logits, group, below)
            lost = (odds + weights).logsumexp(1, keepdim=True) - odds.logsumexp(1, keepdim=True)
            weighed = weighed + torch.einsum("kc,bkhw->bchw", below, weights - lost)
        return weighed

    def _odds(self, logits: Tensor, group: Tensor, below: Tensor) -> Float[Tensor, "b k h w"]:
        """The log of the odds of some siblings; of a flat head, up to what they share."""
        if self.head == "hierarchical":
            return logits.index_select(1, group)
        return torch.einsum("kc,bchw->bkhw", below, logits.softmax(1)).clamp(min=1e-30).log()
