"""Encoder, decoder and head; pretrained weights; the averaged teacher."""

from .norm import share_batch_norm
from .segmenter import ModelConfig, Segmenter, build_model
from .teacher import AveragedTeacher
from .weights import load_weights

__all__ = ["AveragedTeacher", "ModelConfig", "Segmenter", "build_model", "load_weights", "share_batch_norm"]
