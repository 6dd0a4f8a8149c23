"""What is refused before a run starts or goes on, each in a sentence that names the key."""

from __future__ import annotations

import sys

from ..data.balance import SAMPLING
from ..data.config import DataConfig
from ..data.dataset import Dataset
from ..data.hierarchies import KINDS
from ..data.layouts import LAYOUTS
from ..data.open import SCENES
from ..errors import ConfigError, RunError, choose
from ..logic.diagnosis import STRATEGIES
from ..logic.fuzzy import CONNECTIVES, QUANTIFIERS
from ..logic.knowledge import ROOTS
from ..logic.leaves import DECISIONS
from ..methods.build import METHODS
from ..methods.config import MethodConfig
from ..methods.features import FeatureDropout
from ..methods.loss import POINTS_BY, REDUCTIONS
from ..models.segmenter import HEADS
from ..pseudo.build import PSI, refuse_flat
from ..pseudo.concepts import TARGETS
from ..pseudo.diagnosis import WEIGHTS
from .config import Config
from .inference import PRECISIONS, SMALLEST
from .optimizer import OPTIMIZERS
from .run import Run


def check_settings(config: Config) -> None:
    """Refuse what makes no sense whatever the data are; also of options that the method in use does not look at."""
    _check_names(config)
    _check_psi(config)
    _check_method(config.method, config.train.steps)
    t, d = config.train, config.data
    for key in ("steps", "labeled_batch", "unlabeled_batch", "accumulate", "log_every"):
        if getattr(t, key) < 1:
            raise ConfigError(f"train.{key} is {getattr(t, key)}, expected a whole number of at least 1")
    for key in ("val_every", "save_every"):
        if (value := getattr(t, key)) is not None and value < 1:
            raise ConfigError(f"train.{key} is {value}, expected a whole number of at least 1, or null")
    if not 0 <= t.seed < 1 << 63:
        raise ConfigError(f"train.seed is {t.seed}, expected 0 or more, below 2 ** 63")
    if d.crop < SMALLEST:
        raise ConfigError(f"data.crop is {d.crop}, expected at least {SMALLEST} pixels")
    if not 0 < d.scale[0] <= d.scale[1]:
        raise ConfigError(f"data.scale is {list(d.scale)}, expected two numbers above 0, the smaller one first")
    if d.workers < 0:
        raise ConfigError(f"data.workers is {d.workers}, expected 0 or more")
    _check_views(d)
    if not 0 <= config.loss.balance <= 1:
        raise ConfigError(f"loss.balance is {config.loss.balance}, expected a number from 0 to 1")


def check(config: Config, dataset: Dataset, processes: int = 1) -> None:
    """Refuse what makes no sense, before anything is written."""
    check_settings(config)
    t, d = config.train, config.data
    needs_unlabeled = METHODS[config.method.name].needs_unlabeled
    for key in ("labeled_batch", "unlabeled_batch") if needs_unlabeled else ("labeled_batch",):
        if getattr(t, key) % (processes * t.accumulate):
            raise ConfigError(
                f"train.{key} is {getattr(t, key)}, expected a multiple of {processes * t.accumulate} "
                f"({processes} process{'es' * (processes > 1)}, train.accumulate {t.accumulate})"
            )
    parts = processes * t.accumulate
    if needs_unlabeled and d.views.cutmix > 0 and parts > 1 and t.unlabeled_batch // parts % 2:
        raise ConfigError(
            f"train.unlabeled_batch is {t.unlabeled_batch}, so each of {parts} parts has {t.unlabeled_batch // parts}; "
            "CutMix pairs neighbours: expected an even number for each, or data.views.cutmix=0"
        )
    if config.method.name == "ael" and config.method.ael.paste > 0 and parts > 1 and t.labeled_batch // parts % 2:
        raise ConfigError(
            f"train.labeled_batch is {t.labeled_batch}, so each of {parts} parts has {t.labeled_batch // parts}; ael "
            "pastes between neighbours: expected an even number for each, or method.ael.paste=0"
        )
    if not dataset.labeled:
        raise ConfigError(f"data.labeled is {config.data.labeled!r}, which names no image; training needs some masks")
    if needs_unlabeled and not dataset.unlabeled:
        raise ConfigError(
            f"method.name is {config.method.name}, which learns from unlabelled images, but data.unlabeled "
            f"({config.data.unlabeled!r}) names none; add some, or set method.name to supervised"
        )


def _check_names(c: Config) -> None:
    for key, value, offered in (
        ("method.name", c.method.name, METHODS),
        ("psi.name", c.psi.name, PSI),
        ("psi.target", c.psi.target, TARGETS),
        ("psi.strategy", c.psi.strategy, STRATEGIES),
        ("psi.weight", c.psi.weight, WEIGHTS),
        ("psi.root", c.psi.root, ROOTS),
        ("psi.connectives", c.psi.connectives, CONNECTIVES),
        ("psi.quantifier", c.psi.quantifier, QUANTIFIERS),
        ("model.head", c.model.head, HEADS),
        ("model.decision", c.model.decision, DECISIONS),
        ("loss.nodes", c.loss.nodes, REDUCTIONS),
        ("loss.points_by", c.loss.points_by, POINTS_BY),
        ("optimizer.name", c.optimizer.name, OPTIMIZERS),
        ("train.precision", c.train.precision, PRECISIONS),
        ("data.layout", c.data.layout, [SCENES, *LAYOUTS]),
        ("data.sampling", c.data.sampling, SAMPLING),
        ("data.hierarchy_kind", c.data.hierarchy_kind, KINDS),
    ):
        if value is not None:
            choose(key, value, offered)


def _check_psi(c: Config) -> None:
    for key in ("threshold", "levels"):
        if (value := getattr(c.psi, key)) is not None and not 0 <= value <= 1:
            null = ", or null" * (key == "levels")
            raise ConfigError(f"psi.{key} is {value}, expected a number from 0 to 1{null}")
    if METHODS[c.method.name].needs_unlabeled:  # else diagnosis may be no more than the default, and nobody asks for it
        refuse_flat(c.psi, c.model.head)
    if c.model.head == "flat" and c.model.decision != "leaf":
        raise ConfigError(
            f"model.decision is {c.model.decision}, which decides by a leaf and what is above it, but model.head is "
            "flat and predicts leaves alone; set model.head to hierarchical, or model.decision to leaf"
        )


def _check_method(m: MethodConfig, steps: int) -> None:
    m.check()
    METHODS[m.name].decay(m, steps)
    FeatureDropout(m.feature_dropout, 0)
    m.u2pl.check(sys.maxsize)  # whether there are classes enough is u2pl's own question


def _check_views(d: DataConfig) -> None:
    v = d.views
    shares = {"flip": d.flip, "jitter": v.jitter, "gray": v.gray, "blur": v.blur, "cutmix": v.cutmix}
    for key, value in shares.items():
        if not 0 <= value <= 1:
            name = key if key == "flip" else f"views.{key}"
            raise ConfigError(f"data.{name} is {value}, expected a probability from 0 to 1")
    for key in ("brightness", "contrast", "saturation", "hue"):
        if getattr(v, key) < 0:
            raise ConfigError(f"data.views.{key} is {getattr(v, key)}, expected 0 or more")


def refuse_other_data(run: Run, dataset: Dataset) -> None:
    """What is resumed must be what was begun."""
    if dataset.hierarchy != run.hierarchy:
        raise RunError(f"{run.path}: the data set has another hierarchy now than the run was begun with")
    for name, now in dataset.lists.items():
        then = run.record.get("lists", {}).get(name)
        if then is None:
            continue
        if then["fingerprint"] != now.fingerprint and name == "witness":
            raise RunError(f"{run.path}: data.witness says other things than when the run was begun")
        if then["fingerprint"] != now.fingerprint:
            counts = f"{then['count']} then, {now.count} now"
            raise RunError(f"{run.path}: data.{name} names other images than when the run was begun ({counts})")
        if then.get("order") and then["order"] != now.order:
            raise RunError(f"{run.path}: data.{name} names its images in another order than when the run was begun")
