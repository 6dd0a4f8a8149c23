"""The few heavy operations, over plain tensors: `reference` is slow and obvious, the others are PyTorch.

Everything here works on *rows*: a block of pixels as an (n, P) tensor, one row per concept, in the breadth-first order
of a `Layout`, where siblings are neighbours.
"""
