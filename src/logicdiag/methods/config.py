"""The `method` and `loss` parts of a configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class MethodConfig:
    """How views and networks are arranged, and what the unlabelled loss weighs."""

    name: str = "fixmatch"
    """supervised, fixmatch (Eq. 2), mean_teacher, unimatch, cps, mkd, or algorithm1 (the paper's Algorithm 1).

    `logicdiag methods` tells of each.
    """
    weight: float = 1.0
    """Lambda: the weight of the unlabelled loss. The paper: 5."""
    ramp: tuple[float, float] = (0.1, 0.3)
    """The shares of the run between which lambda rises from 0 to its value. The paper: [0, 0], at once."""
    teacher_decay: float | None = None
    """How much of itself the averaged teacher keeps in a step; 0: the student is its own teacher, as in the papers of
    all methods but mean_teacher and mkd; null: 0.996, and none for algorithm1.
    """
    feature_dropout: float = 0.5
    """unimatch and mkd: the probability that a channel of the features is dropped."""


@dataclass
class LossConfig:
    """How a prediction is held against a target."""

    nodes: str = "sum"
    """sum (a pixel's loss is the negative log likelihood of all its labels) or mean over the hierarchy's nodes."""
    leaf: float = 1.0
    """Weight of a cross entropy over the leaves' logits beside the binary one, where the target is a leaf: with it the
    sigmoid head learns faster in short runs. The paper: 0. A flat head has nothing else.
    """
    points: int | None = None
    """Point-wise supervision: pixels of each view that are learned from; null: all of them."""
    points_by: str = "random"
    """random, or uncertain (three quarters where the prediction is least sure, the rest at random, as PointRend)."""
