"""Encoder, decoder and head; pretrained weights; the averaged teacher."""
