"""Mean teacher (Tarvainen and Valpola, NeurIPS 2017) with CutMix, as CutMix-Seg (French et al., BMVC 2020) applies it.

The teacher is the moving average of the student. It labels the weak views; the student sees them mixed by CutMix, with
no change of colour, and learns the labels mixed alike.

Where ours differs: the target is psi of the teacher's prediction and the loss the head's own, where the papers take the
squared difference of probabilities, so that methods differ in nothing but their arrangement.
"""

from __future__ import annotations

from ..errors import ConfigError
from .fixmatch import FixMatch
from .method import Paper


class MeanTeacher(FixMatch):
    paper = Paper("CutMix-Seg", "French et al.", "BMVC", 2020)
    stream, colour = "mixed", False

    def _averages(self, decay: float) -> bool:
        if decay <= 0:
            raise ConfigError(
                f"method.teacher_decay is {decay}, but a mean teacher is an average: expected above 0, such as 0.99"
            )
        return True
