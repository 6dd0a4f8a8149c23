"""Weights of classes: the rarer, the heavier, and 1 on average; and which images show them."""

import numpy as np
import pytest

from logicdiag.data import balance
from logicdiag.data.balance import leaf_weights, shown
from logicdiag.data.dataset import IGNORE, Masked


def masked(values):
    return Masked("x", lambda: pytest.fail("an image was opened"), lambda: np.array([values], np.uint8))


ITEMS = [masked([0] * 12 + [1] * 3 + [IGNORE] * 9), masked([0] * 4 + [2])]


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_labelled_pixels_weigh_one_on_average(power):
    weights = leaf_weights(ITEMS, 3, power)
    counts = np.array([16, 3, 1])
    assert (weights * counts).sum() == pytest.approx(20)
    assert weights[1] / weights[0] == pytest.approx((16 / 3) ** power)
    assert weights[2] / weights[0] == pytest.approx(16**power)


def test_no_power_no_difference():
    assert leaf_weights(ITEMS, 3, 0.0).tolist() == [1, 1, 1]


def test_a_leaf_that_no_mask_shows_weighs_as_the_rarest():
    weights = leaf_weights(ITEMS, 5, 0.5)
    assert weights[3] == weights[4] == weights[2]


def test_masks_that_show_nothing():
    assert leaf_weights([masked([IGNORE, IGNORE])], 2, 0.5).tolist() == [1, 1]


def test_of_many_masks_some_are_counted_evenly(monkeypatch):
    monkeypatch.setattr(balance, "MOST_MASKS", 2)
    many = [masked([0]), Masked("y", lambda: None, lambda: pytest.fail("not this one")), masked([1]), *ITEMS[:1]]
    assert leaf_weights(many, 2, 1.0).tolist() == [1, 1]


def test_images_that_show_a_class():
    """What a mask ignores, and classes that no mask shows, are left out."""
    assert shown([*ITEMS, masked([IGNORE, 2])], 4) == {0: [0, 1], 1: [0], 2: [1, 2]}
    assert shown([masked([IGNORE])], 4) == {}
