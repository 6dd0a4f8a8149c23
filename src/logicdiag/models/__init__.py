"""Encoder, decoder and head; pretrained weights; the averaged teacher."""

from .segmenter import ModelConfig, Segmenter, build_model

__all__ = ["ModelConfig", "Segmenter", "build_model"]
