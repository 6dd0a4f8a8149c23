"""The loops of `native.py`, compiled by numba at their first call and kept on disk.

Every kernel takes the tables of a schedule (`schedule.Flat`), the pixels to work on, from `here` to `end`, and arrays
whose last dimension is all pixels: contiguous ones, because numba makes slow code for slices. A tile of pixels goes
through a whole sweep together: `weights[row, x]` is the weight of a state at pixel x of the tile. Inner loops run over
whole rows of the tile, always to its end, so that they become wide instructions; what they do past the last pixel is
never read.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .schedule import FLIP_FALSE, FLIP_TRUE, KEEP_FALSE, KEEP_TRUE
from .taken import FORBIDDEN

TILE = 128
"""Enough for wide instructions, few enough for the states of a tile to stay in a cache."""

compiled = njit(nogil=True, cache=True, error_model="numpy")


@compiled
def _weigh(first, height, start, left, right, truth, flip, less, begin, size, weights, least):
    """Fill a tile of weights, as products; `least` is the smallest positive one of each pixel."""
    zero, one = weights.dtype.type(0), weights.dtype.type(1)
    for x in range(TILE):
        weights[0, x] = one
        least[x] = one
    for node in range(truth.shape[0]):
        rows, tile = weights[1 + 4 * node : 5 + 4 * node], slice(begin, begin + size)
        _weigh_node(truth[node, tile], flip[node, tile], less[node, tile], rows, least)
    for i in range(height - first):
        mine, one_row, other = weights[first + i], weights[left[start[i]]], weights[right[start[i]]]
        for x in range(TILE):
            mine[x] = one_row[x] * other[x]
        for way in range(start[i] + 1, start[i + 1]):
            one_row, other = weights[left[way]], weights[right[way]]
            for x in range(TILE):
                mine[x] += one_row[x] * other[x]
        for x in range(TILE):
            alive = mine[x] if mine[x] > zero else one
            least[x] = alive if alive < least[x] else least[x]


@compiled
def _weigh_node(truth, flip, less, rows, least):
    """The four kinds of one node; the likelier of keep and flip weighs one. Short loops, which become wide ones."""
    zero, one = rows.dtype.type(0), rows.dtype.type(1)
    keep_false, flip_false, keep_true, flip_true = rows[KEEP_FALSE], rows[FLIP_FALSE], rows[KEEP_TRUE], rows[FLIP_TRUE]
    size = len(truth)
    for x in range(size):
        least[x] = less[x] if less[x] < least[x] else least[x]
    for x in range(size):
        keep_false[x] = less[x] if flip[x] > zero else one
    for x in range(size):
        flip_false[x] = one if flip[x] > zero else less[x]
    for x in range(size):
        keep_true[x] = keep_false[x] if truth[x] else zero
    for x in range(size):
        flip_true[x] = flip_false[x] if truth[x] else zero
    for x in range(size):
        keep_false[x] -= keep_true[x]
    for x in range(size):
        flip_false[x] -= flip_true[x]


@compiled
def sample(
    first, height, final, start, left, right, draw, here, end, truth, flip, less, draws, revised, total, least, flipped
):
    """Draw a diagnosis at each pixel: up for the weights, then down along one run, a random number at each fork.

    `on` is 1 at the states of the run. Of a state's ways the first is taken whose running sum exceeds the draw, else
    the last.
    """
    dtype, zero, one = flip.dtype, flip.dtype.type(0), flip.dtype.type(1)
    weights, on = np.zeros((height, TILE), dtype), np.empty((height, TILE), dtype)
    low, bound, running, waiting = np.zeros((4, TILE), dtype)
    for begin in range(here, end, TILE):
        size = min(TILE, end - begin)
        _weigh(first, height, start, left, right, truth, flip, less, begin, size, weights, low)
        on[:] = zero
        on[final] = one
        for i in range(height - first - 1, -1, -1):
            row, last = first + i, start[i + 1] - 1
            mine, weight = on[row], weights[row]
            if start[i] < last:
                drawn = draws[draw[i]]
                for x in range(size):
                    bound[x] = drawn[begin + x] * weight[x]
                for x in range(TILE):
                    waiting[x] = mine[x]
                    running[x] = zero
                for way in range(start[i], last):
                    one_row, other = weights[left[way]], weights[right[way]]
                    for x in range(TILE):
                        running[x] += one_row[x] * other[x]
                    one_on, other_on = on[left[way]], on[right[way]]
                    for x in range(TILE):
                        taken = waiting[x] if running[x] > bound[x] else zero
                        waiting[x] -= taken
                        one_on[x] += taken
                        other_on[x] += taken
                mine = waiting
            one_on, other_on = on[left[last]], on[right[last]]
            for x in range(TILE):
                one_on[x] += mine[x]
                other_on[x] += mine[x]
        for x in range(size):
            total[begin + x] = weights[final, x]
            least[begin + x] = low[x]
        _flip(on, truth, flip, begin, size, revised, flipped)


@compiled
def likeliest(first, height, final, start, left, right, draw, here, end, truth, flip, revised, flipped):
    """Follow the likeliest run of each pixel; of equal ways, the first. Weights are logarithms."""
    dtype, zero, one = flip.dtype, flip.dtype.type(0), flip.dtype.type(1)
    forbidden = dtype.type(-FORBIDDEN)
    weights, on, waiting = np.zeros((height, TILE), dtype), np.empty((height, TILE), dtype), np.empty(TILE, dtype)
    for begin in range(here, end, TILE):
        size = min(TILE, end - begin)
        for node in range(truth.shape[0]):
            row = 1 + 4 * node
            for x in range(size):
                at = begin + x
                true = zero if truth[node, at] else forbidden
                false = forbidden if truth[node, at] else zero
                weights[row + KEEP_FALSE, x] = false
                weights[row + FLIP_FALSE, x] = false + flip[node, at]
                weights[row + KEEP_TRUE, x] = true
                weights[row + FLIP_TRUE, x] = true + flip[node, at]
        for i in range(height - first):
            mine, one_row, other = weights[first + i], weights[left[start[i]]], weights[right[start[i]]]
            for x in range(TILE):
                mine[x] = one_row[x] + other[x]
            for way in range(start[i] + 1, start[i + 1]):
                one_row, other = weights[left[way]], weights[right[way]]
                for x in range(TILE):
                    sum_ = one_row[x] + other[x]
                    mine[x] = sum_ if sum_ > mine[x] else mine[x]
        on[:] = zero
        on[final] = one
        for i in range(height - first - 1, -1, -1):
            row, last = first + i, start[i + 1] - 1
            weight = weights[row]
            for x in range(TILE):
                waiting[x] = on[row, x]
            for way in range(start[i], last + 1):
                one_row, other = weights[left[way]], weights[right[way]]
                one_on, other_on = on[left[way]], on[right[way]]
                for x in range(TILE):
                    taken = waiting[x] if one_row[x] + other[x] >= weight[x] else zero
                    waiting[x] -= taken
                    one_on[x] += taken
                    other_on[x] += taken
        _flip(on, truth, flip, begin, size, revised, flipped)


@compiled
def _flip(on, truth, flip, begin, size, revised, flipped):
    """Do what the base rows say."""
    zero = on.dtype.type(0)
    for node in range(truth.shape[0]):
        was, now, odds = truth[node], revised[node], flip[node]
        raised, dropped = on[1 + 4 * node + FLIP_FALSE], on[1 + 4 * node + FLIP_TRUE]
        for x in range(size):
            raised[x] += dropped[x]
        for x in range(size):
            now[begin + x] = was[begin + x] ^ (raised[x] > zero)
        for x in range(size):
            flipped[begin + x] += raised[x] * odds[begin + x]


@compiled
def expect(first, height, final, start, left, right, draw, here, end, truth, flip, less, share, total, least):
    """The probability that each node is flipped: the weight of a state is handed down in shares."""
    dtype, zero, one = flip.dtype, flip.dtype.type(0), flip.dtype.type(1)
    weights, on, low = np.zeros((height, TILE), dtype), np.empty((height, TILE), dtype), np.empty(TILE, dtype)
    for begin in range(here, end, TILE):
        size = min(TILE, end - begin)
        _weigh(first, height, start, left, right, truth, flip, less, begin, size, weights, low)
        on[:] = zero
        on[final] = one
        for i in range(height - first - 1, -1, -1):
            mine, weight = on[first + i], weights[first + i]
            for x in range(TILE):
                mine[x] = mine[x] / weight[x] if weight[x] > zero else zero
            for way in range(start[i], start[i + 1]):
                one_row, other = weights[left[way]], weights[right[way]]
                one_on, other_on = on[left[way]], on[right[way]]
                for x in range(TILE):
                    passed = one_row[x] * other[x] * mine[x]
                    one_on[x] += passed
                    other_on[x] += passed
        for node in range(truth.shape[0]):
            for x in range(size):
                share[node, begin + x] = on[1 + 4 * node + FLIP_FALSE, x] + on[1 + 4 * node + FLIP_TRUE, x]
        for x in range(size):
            total[begin + x] = weights[final, x]
            least[begin + x] = low[x]
