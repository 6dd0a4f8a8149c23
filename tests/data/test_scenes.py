"""The generated scenes: lawful, balanced, and hard in the leaves only."""

import pickle
from collections import Counter

import numpy as np
import pytest

from logicdiag.data.config import ScenesConfig
from logicdiag.data.dataset import Masked
from logicdiag.data.scenes import HIERARCHY, THINGS, _painted, scenes
from logicdiag.data.things import COATS, HUES, SHAPES
from logicdiag.errors import OptionError

LEAVES = len(HIERARCHY.leaves)


def regions(items: list[Masked]) -> tuple[np.ndarray, np.ndarray]:
    """Mean colour and leaf of every class in every scene, where there is enough of it."""
    colours, leaves = [], []
    for item in items:
        image, mask = item.image(), item.mask()
        for leaf in np.unique(mask):
            if (mask == leaf).sum() >= 40:
                colours.append(image[mask == leaf].mean(0))
                leaves.append(leaf)
    return np.array(colours), np.array(leaves)


def test_hierarchy():
    h, train, val = scenes(ScenesConfig())
    assert (len(h.leaves), h.height) == (13, 3)
    assert h.parent("background") is None
    assert h.is_leaf("background")
    assert all(len(h.path(leaf)) == 3 for leaf in THINGS)
    assert (len(train), len(val)) == (120, 40)
    assert len({item.name for item in train + val}) == 160


def test_every_leaf_has_a_coat_and_every_kind_a_shape():
    kinds = {HIERARCHY.parent(leaf) for leaf in THINGS}
    assert set(COATS) == set(THINGS)
    assert set(SHAPES) == set(HUES) == kinds
    for kind in kinds:
        assert len({COATS[leaf] for leaf in HIERARCHY.children(kind)}) == 2, "siblings differ by their coat"


@pytest.mark.parametrize("size", [32, 96, 130])
def test_images_and_masks(size):
    _, train, _ = scenes(ScenesConfig(size=size))
    image, mask = train[3].image(), train[3].mask()
    assert image.shape == (size, size, 3)
    assert mask.shape == (size, size)
    assert image.dtype == mask.dtype == np.uint8
    assert mask.max() < LEAVES
    assert 0.35 < (mask == 0).mean() < 0.95


def test_a_scene_is_a_function_of_its_index():
    _, train, val = scenes(ScenesConfig())
    before = train[5].image(), train[5].mask()
    train[5].image()[:] = 0  # what one reader does to its array is its own affair
    _painted.cache_clear()
    again = pickle.loads(pickle.dumps(train[5]))
    assert np.array_equal(again.image(), before[0])
    assert np.array_equal(again.mask(), before[1])
    fewer = scenes(ScenesConfig(train=6))[1][5]
    assert np.array_equal(fewer.image(), before[0])
    others = [train[6], val[5], scenes(ScenesConfig(seed=1))[1][5]]
    assert not any(np.array_equal(other.mask(), before[1]) for other in others)


def test_noise_is_of_the_image_alone():
    quiet, loud = (scenes(ScenesConfig(noise=noise))[1][0] for noise in (0.0, 0.1))
    assert np.array_equal(quiet.mask(), loud.mask())
    middle = (quiet.image() > 90) & (quiet.image() < 165)  # not clipped
    spread = (loud.image().astype(float) - quiet.image())[middle].std() / 255
    assert spread == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_the_labelled_scenes_have_every_class(seed):
    _, train, _ = scenes(ScenesConfig(seed=seed))
    pixels = sum(np.bincount(item.mask().ravel(), minlength=LEAVES) for item in train[:12])
    assert pixels.min() >= 200, dict(zip(HIERARCHY.leaves, pixels, strict=True))


def test_no_class_is_rare():
    _, _, val = scenes(ScenesConfig())
    shown = Counter(leaf for item in val for leaf in np.unique(item.mask()).tolist())
    assert min(shown[leaf] for leaf in range(LEAVES)) >= 10


def test_superclasses_are_easy_and_leaves_are_hard():
    """By the nearest mean colour, which knows nothing of texture and shape, among the things."""
    _, train, val = scenes(ScenesConfig())
    (colours, leaves), (seen, truth) = regions(train[:60]), regions(val)
    superclass = np.array([HIERARCHY.index(HIERARCHY.path(leaf)[0]) for leaf in HIERARCHY.leaves])

    def accuracy(group: np.ndarray) -> float:
        names = np.unique(group[leaves])
        centroids = np.stack([colours[group[leaves] == name].mean(0) for name in names])
        nearest = np.linalg.norm(seen[:, None] - centroids, axis=2).argmin(1)
        return float((names[nearest] == group[truth])[truth != HIERARCHY.leaves.index("background")].mean())

    top, leaf = accuracy(superclass), accuracy(np.arange(LEAVES))
    assert top > 0.9
    assert leaf < 0.5
    assert top > leaf + 0.3


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_siblings_have_one_colour(kind):
    """The means of two siblings lie closer together than the things of one of them are spread."""
    _, train, _ = scenes(ScenesConfig())
    colours, leaves = regions(train)
    a, b = (colours[leaves == HIERARCHY.leaves.index(leaf)] for leaf in HIERARCHY.children(kind))
    assert np.linalg.norm(a.mean(0) - b.mean(0)) < 0.8 * np.linalg.norm(a.std(0))


@pytest.mark.parametrize(("key", "value"), [("size", 8), ("seed", -1), ("noise", -0.1), ("train", -1)])
def test_options_that_cannot_be_used(key, value):
    with pytest.raises(OptionError, match=f"scenes.{key} is {value}"):
        scenes(ScenesConfig(**{key: value}))


@pytest.mark.parametrize("leaf", THINGS)
def test_a_coat_changes_no_mean_colour(leaf):
    u, v = np.meshgrid(*[np.linspace(0, 200, 1501)] * 2)
    pattern = COATS[leaf](u, v)
    assert abs(pattern.mean()) < 0.02
    assert 0.6 < pattern.std() < 0.95
