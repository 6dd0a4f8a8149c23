"""Mean teacher (Tarvainen and Valpola, NeurIPS 2017) with CutMix, as CutMix-Seg (French et al., BMVC 2020) applies it.

The teacher is the moving average of the student. It labels the weak views; the student sees them mixed by CutMix, with
no change of colour, and learns the labels mixed alike:

    L = L^l + lambda / N^u  sum_j H(h(M(u_j)), psi(g(u_j)))

CutMix-Seg has lambda = 1 at once, a decay of 0.99, and a threshold of 0.97: the share of pixels above it weighs the
loss of all.

Where ours differs:
- The target is psi of the teacher's prediction and the loss the head's own, where the papers take the squared
  difference of probabilities, so that methods differ in nothing but their arrangement; a threshold, if psi has one,
  leaves single pixels out, as in all methods.
- Boxes are those of all our methods, from the neighbour in the batch, so that one batch is enough; theirs cover half of
  every view, and what is in them comes from a second batch.
- The decay is 0.996, less in a short run, and one for all methods, for the average is also what is evaluated. Lambda
  rises between 0.3 and 0.6 of the run (`method.ramp`), which keeps the noise of early labels from the student.
"""

from __future__ import annotations

from .fixmatch import FixMatch
from .method import Paper


class MeanTeacher(FixMatch):
    paper = Paper("CutMix-Seg", "French et al.", "BMVC", 2020)
    stream, colour = "mixed", False
    needs_average = True
