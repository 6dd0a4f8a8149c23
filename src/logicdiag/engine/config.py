"""What a training run is made of: a typed configuration. Defaults live here, so YAML files stay small."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..data.config import DataConfig
from ..methods.config import LossConfig, MethodConfig
from ..models.segmenter import ModelConfig
from ..pseudo.config import PsiConfig
from .inference import InferenceConfig


@dataclass
class OptimizerConfig:
    """How weights follow gradients."""

    name: str = "adamw"
    """adamw or sgd (momentum 0.9). The paper: sgd, at 0.0025 or 0.01."""
    lr: float = 0.0003
    """Learning rate of the encoder at the first step."""
    head_lr: float = 10.0
    """The decoder and the head learn this many times faster than the encoder, which may be pretrained."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    power: float = 0.9
    """The learning rate falls as (1 - step / steps) ** power."""
    warmup: int = 0
    """Steps over which the learning rate rises to its start."""
    clip: float | None = None
    """Gradients are scaled down to this norm; null: never."""


@dataclass
class TrainConfig:
    """How long, how much at once, how exactly, and what is kept."""

    steps: int = 40000
    """Optimiser steps."""
    labeled_batch: int = 8
    """Labelled views of one step, over all processes."""
    unlabeled_batch: int = 8
    """Unlabelled views of one step, over all processes."""
    accumulate: int = 1
    """Parts that a step's batch is worked on in, one after the other, where memory is short."""
    precision: str = "fp32"
    """fp32, bf16 or fp16 (mixed, with a loss scale)."""
    seed: int = 0
    """The same seed, the same run."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1, mps."""
    compile: bool | None = None
    """Whether the networks are compiled (torch.compile), which takes about two minutes at the start; null: on one GPU,
    in runs of at least 40,000 steps.
    """
    capture: bool | None = None
    """Whether the step is captured as one CUDA graph and replayed, so that no kernel waits for its launch; null:
    wherever that is possible.
    """
    log_every: int = 20
    """Steps between two lines of metrics.jsonl."""
    val_every: int | None = None
    """Steps between two evaluations on `data.val`; null: ten times in a run."""
    save_every: int | None = None
    """Steps between two checkpoints; null: at every evaluation."""


@dataclass
class Config:
    """A training run. The defaults are LogicDiag (hierarchical head, psi = diagnosis, Eq. 2) with constants that serve
    few labels and short runs; those of the paper stand in `configs/paper/`.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    psi: PsiConfig = field(default_factory=PsiConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
