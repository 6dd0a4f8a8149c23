"""The `method` and `loss` parts of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ..errors import ConfigError


@dataclass
class U2PLConfig:
    """u2pl: the partition of pixels, and the contrast between classes."""

    unreliable: float = 0.2
    """Alpha_0: the share of unlabelled pixels that is unreliable at the start; it falls to 0 over the run."""
    weight: float = 0.1
    """Lambda_c: the weight of the contrast, beside the unlabelled loss and under its lambda."""
    temperature: float = 0.5
    """Tau, which similarities are divided by."""
    anchors: int = 256
    """M: anchors of each class in a step, at most; also the new negatives of each class."""
    negatives: int = 50
    """N: negatives that each anchor is held against."""
    confidence: float = 0.3
    """Delta_p: anchors are pixels that are surer of their class."""
    ranks: tuple[int, int] = (3, 20)
    """r_l and r_h: an unreliable pixel is likely none of the classes with these ranks in its prediction, from 0 on,
    the second left out; a labelled pixel is none of those before the first, but its own.
    """
    channels: int = 256
    """Of a representation."""
    queue: int = 4096
    """Negatives of each class that are remembered. The authors' code: 30000, and 50000 of the first class."""

    def check(self, classes: int) -> None:
        if not 0 <= self.unreliable < 1:
            raise ConfigError(f"method.u2pl.unreliable is {self.unreliable}, expected a share from 0 to below 1")
        for key in ("anchors", "negatives", "channels", "queue"):
            if getattr(self, key) < 1:
                raise ConfigError(f"method.u2pl.{key} is {getattr(self, key)}, expected a whole number of at least 1")
        if self.weight < 0:
            raise ConfigError(f"method.u2pl.weight is {self.weight}, expected 0 or more")
        if not 0 <= self.confidence < 1:
            raise ConfigError(
                f"method.u2pl.confidence is {self.confidence}, expected a probability from 0 to below 1: there are no "
                "anchors that are surer"
            )
        if self.temperature <= 0:
            raise ConfigError(f"method.u2pl.temperature is {self.temperature}, expected a number above 0")
        low, high = self.ranks
        if not 0 <= low < high:
            raise ConfigError(f"method.u2pl.ranks is [{low}, {high}], expected two rising ranks, the first 0 or more")
        if low >= classes:
            raise ConfigError(
                f"method.u2pl.ranks is [{low}, {high}], but of {classes} classes none ranks so low, and unreliable "
                f"pixels would teach nothing; expected a first rank below {classes}"
            )


@dataclass
class AELConfig:
    """ael: the bank of confidences, and what follows it."""

    momentum: float = 0.999
    """Alpha: how much of itself the bank keeps in a step."""
    beta: float = 1.0
    """The exponent of a class's sampling rate; 0: all pixels are learned from."""
    gamma: float = 2.0
    """The exponent of the teacher's confidence in a pixel's weight; 0: all weigh alike."""
    paste: float = 0.5
    """The probability that pixels are pasted into a labelled view."""
    area: float = 0.03
    """The share of a view that a class must cover to be cut or copied from it."""

    def check(self) -> None:
        for key in ("momentum", "paste", "area"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"method.ael.{key} is {getattr(self, key)}, expected a number from 0 to 1")
        for key in ("beta", "gamma"):
            if getattr(self, key) < 0:
                raise ConfigError(f"method.ael.{key} is {getattr(self, key)}, expected 0 or more")


@dataclass
class StagesConfig:
    """st++: its three stages, and the ranking of images."""

    shares: tuple[float, float, float] = (0.3, 0.3, 0.4)
    """Of the run's steps: on labels alone, with the reliable images, with all images."""
    snapshots: int = 3
    """K: networks of the first stage, evenly apart, whose predictions are held against those of the last."""
    reliable: float = 0.5
    """The share of unlabelled images, the most stable ones, of the second stage."""
    anew: bool = True
    """Whether a new student begins in each stage, from the first weights; false: the student goes on."""

    def check(self) -> None:
        if min(self.shares) <= 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ConfigError(
                f"method.stages.shares is {list(self.shares)}, expected three numbers above 0 that add up to 1"
            )
        if self.snapshots < 2:
            raise ConfigError(f"method.stages.snapshots is {self.snapshots}, expected a whole number of at least 2")
        if not 0 < self.reliable <= 1:
            raise ConfigError(f"method.stages.reliable is {self.reliable}, expected a share above 0, up to 1")


@dataclass
class MethodConfig:
    """How views and networks are arranged, and what the unlabelled loss weighs."""

    name: str = "fixmatch"
    """supervised, fixmatch (Eq. 2), mean_teacher, unimatch, cps, mkd, u2pl, ael, st++, or algorithm1 (the paper's
    Algorithm 1). `logicdiag methods` tells of each.
    """
    weight: float = 1.0
    """Lambda: the weight of the unlabelled loss. The paper: 5."""
    ramp: tuple[float, float] = (0.3, 0.6)
    """The shares of the run between which lambda rises from 0 to its value. The paper: [0, 0], at once. st++ has none:
    its first stage learns from the labels alone (`stages.shares`), and the others from a network that has finished.
    """
    teacher_decay: float | None = None
    """How much of itself the averaged teacher keeps in a step; 0: the student is its own teacher, as in the papers of
    all methods but mean_teacher, mkd, u2pl and ael; null: 0.996, or what averages over a fifteenth of the run where
    that is less (0.99 of 1500 steps; docs/choosing.md says why), and none for algorithm1.
    """
    feature_dropout: float = 0.5
    """unimatch and mkd: the probability that a channel of the features is dropped."""
    ael: AELConfig = field(default_factory=AELConfig)
    u2pl: U2PLConfig = field(default_factory=U2PLConfig)
    stages: StagesConfig = field(default_factory=StagesConfig)

    def check(self) -> None:
        """What needs neither data nor a network to be seen."""
        if self.weight < 0:
            raise ConfigError(f"method.weight is {self.weight}, expected 0 or more")
        start, stop = self.ramp
        if not 0 <= start <= stop <= 1:
            raise ConfigError(f"method.ramp is [{start}, {stop}], expected two rising shares of the run, from 0 to 1")
        self.ael.check()
        self.stages.check()


OWN = {"u2pl": "u2pl", "ael": "ael", "stages": "st++"}
"""Parts of `MethodConfig`, and the only method that looks at each."""


def unheard(config: MethodConfig) -> str | None:
    """An option that was changed, and that the method does not look at: most likely a mistake.

    >>> unheard(MethodConfig("cps", ael=AELConfig(gamma=1.0)))
    'method.ael.gamma is 1.0, but ael alone looks at it, and method.name is cps'
    """
    for part, name in OWN.items():
        found = getattr(config, part)
        for option in fields(found):
            value = getattr(found, option.name)
            if config.name != name and value != option.default:
                where = f"method.{part}.{option.name}"
                return f"{where} is {value}, but {name} alone looks at it, and method.name is {config.name}"
    return None


@dataclass
class LossConfig:
    """How a prediction is held against a target."""

    nodes: str = "mean"
    """mean over the hierarchy's nodes, so that a learning rate serves trees of any size, and the flat head; or sum (a
    pixel's loss is the negative log likelihood of all its labels).
    """
    leaf: float = 1.0
    """Weight of a cross entropy over the leaves' logits beside the binary one, where the target is a leaf: with it the
    sigmoid head learns faster in short runs. The paper: 0. A flat head has nothing else.
    """
    balance: float = 0.5
    """How much more a rare class weighs: labelled pixels by the share of their class in the masks to minus this power;
    0: all alike (the paper), 1: all classes alike. Pseudo labels are not weighed by class.
    """
    points: int | None = None
    """Point-wise supervision: pixels of each view that are learned from; null: all of them."""
    points_by: str = "random"
    """random, or uncertain (three quarters where the prediction is least sure, the rest at random, as PointRend)."""
