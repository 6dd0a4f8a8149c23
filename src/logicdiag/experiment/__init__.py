"""Experiments: a grid of runs, side by side and resumable; their tables and plots; how good pseudo labels were."""
