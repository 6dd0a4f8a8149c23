"""The few heavy operations, over plain tensors: `reference` is slow and obvious; then PyTorch, machine code for CPUs
(`sweeps`) and Triton for GPUs (`triton_*`).

All but the last work on *rows*: a block of pixels as an (n, P) tensor, one row per concept, in the breadth-first
order of a `Layout`, where siblings are neighbours. Triton's kernels read predictions as they are, channel by channel.
"""
