"""Supervised training on the labelled views alone (LogicDiag: Liang et al., ICCV 2023, Eq. 1): what every other method
has to beat.

    L = L^l = 1 / N^l  sum_i H(h(alpha(x_i)), y_i)

The mean is over labelled pixels; those without a label do not count. No constant is its own. H is the loss of the head:
with the flat one a cross entropy, with the hierarchical one the binary cross entropy of all nodes against the path to
the pixel's class. All methods have this L^l.

Where ours differs from the paper:
- By default H has a cross entropy over the leaves beside (`loss.leaf: 0` for none), with which the hierarchical head
  learns faster in short runs, and is a mean over the nodes, so that a learning rate serves trees of any size.
- Rare classes weigh more (`loss.balance`, 0.5 by default): few labelled images show some classes hardly at all.
- alpha scales, crops and mirrors (`data.scale`, `data.crop`, `data.flip`). The paper gives the size of crops, and for
  the rest cites others.
- The averaged copy of the student (`method.teacher_decay`: 0.996, less in a short run) labels nothing here, but is
  evaluated, as in the methods that are held against this one.
"""

from __future__ import annotations

from .method import Losses, Method, Paper, Step


class Supervised(Method):
    """L = L^l (Eq. 1). Unlabelled images are not looked at."""

    paper = Paper("LogicDiag, Eq. 1", "Liang et al.", "ICCV", 2023)
    learned, taught = 1, 0
    needs_unlabeled = False

    def losses(self, step: Step) -> Losses:
        labeled = self.labeled_loss(self.predict(step.labeled.image), step)
        return Losses(labeled, {"labeled": labeled})
