"""One colour per leaf."""

import colorsys
import random

import numpy as np
import pytest

import logicdiag as ld
from logicdiag.palette import BACKGROUND, NO_LEAF, leaf_colours, picture_palette
from tests.cases import random_hierarchy

BUILT_IN = ["voc2012", "cityscapes", "coco", "camvid", "oxford_pets"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_colours_are_all_different(name):
    colours = leaf_colours(ld.Hierarchy.load(name)).tolist()
    assert len({tuple(c) for c in colours} | {NO_LEAF}) == len(colours) + 1


def test_colours_are_different_in_any_tree():
    rng = random.Random(0)
    for _ in range(40):
        h = random_hierarchy(rng, most=200)
        assert len(np.unique(leaf_colours(h), axis=0)) == len(h.leaves)


def test_many_leaves_are_different_still():
    h = ld.Hierarchy.from_dict([f"c{i}" for i in range(255)])
    assert len(np.unique(leaf_colours(h), axis=0)) == 255


def test_siblings_are_nearer_in_hue_than_strangers():
    h = ld.Hierarchy.load("voc2012")
    hue = {
        name: colorsys.rgb_to_hsv(*(c / 255))[0]
        for name, c in zip(h.leaves, leaf_colours(h), strict=True)
        if name != "background"
    }

    def apart(first, second):
        turn = abs(hue[first] - hue[second])
        return min(turn, 1 - turn)

    same, other = [], []
    for first in hue:
        for second in hue:
            if first < second:
                (same if h.parent(first) == h.parent(second) else other).append(apart(first, second))
    assert max(same) < 0.34  # a group keeps to its third of the circle
    assert np.mean(same) < np.mean(other) / 2


def test_background_is_dark():
    h = ld.Hierarchy.load("voc2012")
    assert tuple(leaf_colours(h)[h.leaves.index("background")].tolist()) == BACKGROUND
    others = np.delete(leaf_colours(h), h.leaves.index("background"), axis=0)
    assert others.max(axis=1).min() > 3 * max(BACKGROUND)


def test_a_palette_holds_the_colours_and_no_leaf():
    h = ld.Hierarchy.load("camvid")
    palette = np.array(picture_palette(h)).reshape(256, 3)
    assert np.array_equal(palette[: len(h.leaves)], leaf_colours(h))
    assert tuple(palette[255].tolist()) == NO_LEAF
