"""Weak views: aligned, marked, and the same whatever loads them."""

import multiprocessing
import os
import signal
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from logicdiag.data.balance import shown
from logicdiag.data.dataset import IGNORE, Masked, Photo
from logicdiag.data.loader import Loader, Views, _order
from logicdiag.data.resample import Axis, nearest, place, resample
from logicdiag.data.windows import PADDING
from logicdiag.errors import DataError, OptionError
from tests.gpu import no_waiting

CLASSES = 5


def blocks(index: int, height: int, width: int) -> np.ndarray:
    """A mask of large blocks."""
    rng = np.random.default_rng(index)
    return np.kron(rng.integers(0, CLASSES, (height // 8, width // 8)), np.ones((8, 8))).astype(np.uint8)


def coloured(index: int, height: int, width: int) -> np.ndarray:
    """Red says the class, green the item."""
    mask = blocks(index, height, width)
    return np.stack([mask * 50, np.full_like(mask, index * 10), np.full_like(mask, 128)], 2)


def items(n: int = 6, height: int = 40, width: int = 56) -> list[Masked]:
    return [
        Masked(f"item{i}", partial(coloured, i, height, width), partial(blocks, i, height, width)) for i in range(n)
    ]


def load(count: int, things=None, **options) -> list[Views]:
    options = {"batch": 4, "crop": 32, "scale": (0.5, 2.0), "flip": 0.5, "seed": 3, "stream": "labeled"} | options
    with Loader(items() if things is None else things, **options) as loader:
        return list(islice(loader, count))


def item_of(views: Views) -> list[int]:
    """The items of `items()`, read from the green of the first valid pixels."""
    return [round(float(image[1][valid].mean()) * 25.5) for image, valid in zip(views.image, views.valid, strict=True)]


def same(a: Views, b: Views) -> bool:
    assert a.leaf is not None
    assert b.leaf is not None
    return (
        torch.equal(a.image, b.image)
        and torch.equal(a.leaf, b.leaf)
        and torch.equal(a.valid, b.valid)
        and (a.step, a.slots) == (b.step, b.slots)
    )


def joined(parts: list[Views]) -> Views:
    return Views(
        torch.cat([p.image for p in parts]),
        torch.cat([p.leaf for p in parts]),
        torch.cat([p.valid for p in parts]),
        parts[0].step,
        tuple(slot for p in parts for slot in p.slots),
    )


# ---- what a view is ----------------------------------------------------------------------------------------------


def test_shapes_and_types():
    (views,) = load(1)
    assert views.image.shape == (4, 3, 32, 32)
    assert views.image.dtype == torch.float32
    assert views.leaf.shape == views.valid.shape == (4, 32, 32)
    assert views.leaf.dtype == torch.int64
    assert (views.step, views.slots, len(views)) == (0, (0, 1, 2, 3), 4)


def test_mask_and_image_stay_aligned():
    agreeing = total = 0
    for views in load(10):
        red = (views.image[:, 0] * 255 / 50).round().long()
        agreeing += int((red == views.leaf)[views.valid].sum())
        total += int(views.valid.sum())
        assert set(views.leaf.unique().tolist()) <= {-1, *range(CLASSES)}  # nothing between two classes
    assert agreeing / total > 0.9  # all but the edges of blocks, where colours mix


def test_mask_is_exact_at_scale_one():
    for views in load(5, scale=(1, 1)):
        assert torch.equal(views.leaf, (views.image[:, 0] * 255 / 50).round().long())


def test_padding_is_marked_and_one_rectangle():
    for views in load(8, crop=64, scale=(0.5, 1.0)):
        assert not views.valid.all()
        assert (views.leaf == -1)[~views.valid].all()
        assert (views.leaf >= 0)[views.valid].all()
        assert (views.image.permute(0, 2, 3, 1)[~views.valid] == PADDING).all()
        for valid in views.valid:
            rows, columns = valid.any(1), valid.any(0)
            assert torch.equal(valid, rows[:, None] & columns[None])
            assert rows.int().diff().abs().sum() <= 2
            assert columns.int().diff().abs().sum() <= 2


def test_scale_range_is_honoured_and_filled():
    heights = [int(valid.any(1).sum()) for views in load(60, crop=128, scale=(0.5, 1.5)) for valid in views.valid]
    assert min(heights) >= 20
    assert max(heights) <= 60
    assert min(heights) < 24
    assert max(heights) > 56
    assert abs(np.mean(heights) - 40) < 2


def test_place_of_a_padded_image_and_of_a_crop_is_uniform():
    tops = Counter(int(v.int().argmax()) for views in load(100, crop=44, scale=(1, 1)) for v in views.valid.any(2))
    assert set(tops) == set(range(5))
    assert min(tops.values()) > 50
    ramp = [Photo("ramp", partial(_ramp, 36))]
    seen = Counter(
        round(float(v) * 255) for views in load(100, ramp, crop=32, scale=(1, 1)) for v in views.image[:, 0, 0, 0]
    )
    assert set(seen) == set(range(5))
    assert min(seen.values()) > 50


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 90), st.floats(0.3, 3), st.integers(1, 60), st.integers(0, 1 << 30), st.data())
def test_a_crop_around_a_pixel_has_it(size, factor, crop, seed, data):
    """Where views are not smaller than images, the pixel itself; else what lies where it was."""
    around = data.draw(st.integers(0, size - 1))
    axis = place(size, factor, crop, np.random.default_rng(seed), around)
    seen = nearest(axis)
    if axis.scaled >= size:
        assert around - axis.start in seen.tolist()
    else:
        assert (seen >= 0).any()
        assert int((seen[seen >= 0] + axis.start - around).abs().min()) <= size / axis.scaled


def test_a_crop_around_a_pixel_lies_anywhere_that_has_it():
    """As without it where all is in the crop."""
    at = [place(10, 2.0, 6, np.random.default_rng(seed), 4).offset for seed in range(400)]
    assert set(at) == {4, 5, 6, 7, 8, 9}  # the pixel is the tenth and the eleventh of twenty
    assert min(Counter(at).values()) > 40
    assert {place(10, 2.0, 6, np.random.default_rng(seed), 0).offset for seed in range(50)} == {0, 1}
    free, bound = (place(10, 0.5, 9, np.random.default_rng(7), around) for around in (None, 4))
    assert free == bound


def _ramp(height: int) -> np.ndarray:
    return np.broadcast_to(np.arange(height, dtype=np.uint8)[:, None, None], (height, 32, 3)).copy()


@pytest.mark.parametrize("flip", [0.0, 0.3, 1.0])
def test_flip_probability(flip):
    sideways = [Photo("ramp", partial(_sideways, 32))]
    flipped = [bool(i[0, 0, 0] > i[0, 0, -1]) for v in load(100, sideways, scale=(1, 1), flip=flip) for i in v.image]
    assert abs(np.mean(flipped) - flip) < (0.08 if 0 < flip < 1 else 1e-9)


def _sideways(size: int) -> np.ndarray:
    return _ramp(size).transpose(1, 0, 2).copy()


def test_ignore_stays_ignore():
    masked = [Masked("one", partial(coloured, 1, 40, 40), partial(_ignored, 40))]
    (views,) = load(1, masked, scale=(1, 1))
    assert (views.leaf == -1).any(), "a column of the mask is ignored"
    assert views.valid.all()


def _ignored(size: int) -> np.ndarray:
    mask = blocks(1, size, size)
    mask[:, 16:24] = IGNORE
    return mask


def test_unlabelled_views_have_no_leaf():
    (views,) = load(1, [item.bare() for item in items()])
    assert views.leaf is None


# ---- resampling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.3, 0.5, 0.77, 1.0, 1.4, 2.0])
def test_resampling_is_that_of_pillow(factor):
    image = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    height, width = round(37 * factor), round(53 * factor)
    rows, columns = Axis(37, height, 0, height, 0, 37), Axis(53, width, 0, width, 0, 53)
    out = resample(torch.from_numpy(image), rows, columns)
    bilinear = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    assert np.abs(out.permute(1, 2, 0).numpy() * 255 - bilinear).max() < 1.51  # Pillow rounds after each axis
    exact = torch.nn.functional.interpolate(
        torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255,
        size=(height, width),
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )[0]
    assert torch.allclose(out, exact, atol=1e-5)
    picked = image[nearest(rows).numpy()][:, nearest(columns).numpy()]
    assert np.array_equal(picked, Image.fromarray(image).resize((width, height), Image.Resampling.NEAREST))


def test_a_window_is_as_good_as_the_whole():
    """A crop of the scaled image, cut from the source first or last."""
    image = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for views in load(6, [Masked("noise", partial(_noise, 64), partial(_noise_mask, 64))], flip=0.0, scale=(0.6, 1.8)):
        for crop, leaf in zip(views.image, views.leaf, strict=True):
            assert any(_contains(image, crop, leaf, size) for size in range(round(64 * 0.6), round(64 * 1.8) + 1)), (
                "a crop of no scaled image"
            )


def _noise(size: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (size, size, 3), dtype=np.uint8)


def _noise_mask(size: int) -> np.ndarray:
    return _noise(size)[:, :, 0] // 16


def _contains(image: np.ndarray, crop: torch.Tensor, leaf: torch.Tensor, size: int) -> bool:
    if size < 32:
        return False
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    whole = torch.nn.functional.interpolate(tensor, size=(size, size), mode="bilinear", antialias=True)[0]
    at = [(y, x) for y, x in (whole[0, : size - 31, : size - 31] - crop[0, 0, 0]).abs().lt(1e-5).nonzero().tolist()]
    for y, x in at:
        if torch.allclose(whole[:, y : y + 32, x : x + 32], crop, atol=1e-5):
            pick = np.floor((np.arange(size) + 0.5) * 64 / size).astype(int)
            mask = _noise_mask(64)[pick][:, pick][y : y + 32, x : x + 32]
            return bool(np.array_equal(mask, leaf.numpy()))
    return False


# ---- the stream --------------------------------------------------------------------------------------------------


# ---- by class ----------------------------------------------------------------------------------------------------


def striped(index: int, height: int, width: int) -> np.ndarray:
    """Class 0, with a small block of a class that is the item's own."""
    mask = np.zeros((height, width), np.uint8)
    top, left = np.random.default_rng(index).integers(0, (height - 4, width - 4))
    mask[top : top + 4, left : left + 4] = 1 + index % 3
    return mask


def rare(n: int = 8) -> list[Masked]:
    return [Masked(f"item{i}", partial(coloured, i, 40, 56), partial(striped, i, 40, 56)) for i in range(n)]


def test_by_class_each_class_comes_as_often_as_any_other():
    """In the images that show it, and in the view; a fresh permutation of the classes each time."""
    of = shown(rare(), 5)
    assert list(of) == [0, 1, 2, 3]
    orders = set()
    for views in load(60, rare(), crop=16, scale=(1, 2), shown=of):
        counts = torch.stack([(views.leaf == leaf).flatten(1).any(1) for leaf in range(1, 4)], 1)
        assert counts.any(0).all()  # four views, four classes, of which the first is everywhere
        orders.add(tuple(counts.int().argmax(1).tolist()))
    assert len(orders) > 6
    plain = [(views.leaf > 0).flatten(1).any(1).float().mean() for views in load(60, rare(), crop=16, scale=(1, 2))]
    assert np.mean(plain) < 0.5


def test_by_class_every_image_that_shows_it_has_its_turn():
    seen = Counter(number for views in load(60, rare(), shown=shown(rare(), 5)) for number in item_of(views))
    assert set(seen) == set(range(8))


def test_by_class_another_seed_is_another_choice_everywhere():
    """Of the image, and of the pixel: the block's place in a view that has no room to move it."""
    of = {1: shown(rare(), 5)[1]}
    first, other = (load(8, rare(), crop=16, scale=(1, 1), flip=0.0, seed=seed, shown=of) for seed in (3, 4))
    images = [[number for views in found for number in item_of(views)] for found in (first, other)]
    assert set(images[0]) == set(images[1]) == set(of[1])
    assert images[0] != images[1]
    one = {1: of[1][:1]}
    pixels = [
        tuple(int(place) for place in (leaf == 1).nonzero()[0])
        for views in load(20, rare(), crop=1, scale=(1, 1), flip=0.0, shown=one)
        for leaf in views.leaf
    ]
    assert set(pixels) == {(0, 0)}  # each view of one pixel shows the class
    blue = {
        round(float(v))
        for views in load(20, ramped(), crop=1, scale=(1, 1), shown={1: [0]})
        for v in views.image[:, 2, 0, 0] * 255
    }
    assert len(blue) > 8  # of sixteen


def _numbered(height: int, width: int) -> np.ndarray:
    """Blue says which pixel it is."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, :, 2] = np.arange(height * width, dtype=np.uint8).reshape(height, width)
    return image


def _square(height: int, width: int) -> np.ndarray:
    mask = np.zeros((height, width), np.uint8)
    mask[2:6, 3:7] = 1
    return mask


def ramped() -> list[Masked]:
    return [Masked("ramped", partial(_numbered, 12, 12), partial(_square, 12, 12))]


def test_by_class_a_mask_that_changed_is_told_in_a_sentence():
    with pytest.raises(DataError, match="item0: the mask does not show any more what it showed"):
        load(1, rare(), shown={4: [0]})
    with pytest.raises(OptionError, match="shown has a class with no items"):
        load(1, rare(), shown={1: []})


def test_by_class_it_is_the_same_whatever_loads_it():
    options = {"shown": shown(rare(), 5), "crop": 16}
    whole = load(4, rare(), **options)
    assert all(map(same, whole, load(4, rare(), workers=2, **options)))
    assert all(map(same, whole[2:], load(2, rare(), start=2, **options)))
    halves = [load(4, rare(), part=part, parts=2, **options) for part in (0, 1)]
    assert all(same(views, joined(list(both))) for views, *both in zip(whole, *halves, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_for_any_number_of_workers(workers):
    assert all(map(same, load(6), load(6, workers=workers)))


def test_the_same_for_spawned_workers():
    assert all(map(same, load(3), load(3, workers=1, context="spawn")))


def test_start_goes_on_where_another_would_be():
    fresh = load(7)
    assert all(map(same, fresh[4:], load(3, start=4)))
    assert not same(fresh[0], fresh[1])


def test_parts_are_the_whole():
    halves = [load(4, part=part, parts=2) for part in (0, 1)]
    assert all(same(whole, joined([a, b])) for whole, a, b in zip(load(4), *halves, strict=True))


def test_accumulated_are_the_whole():
    micro = load(8, accumulate=2)
    assert [v.step for v in micro] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(same(whole, joined(micro[2 * i : 2 * i + 2])) for i, whole in enumerate(load(4)))


def test_parts_and_accumulated_together():
    ranks = [load(4, batch=8, part=part, parts=2, accumulate=2) for part in (0, 1)]
    assert [v.slots for v in ranks[1][:2]] == [(2, 3), (6, 7)]
    for i, whole in enumerate(load(2, batch=8)):
        runs = [ranks[0][2 * i], ranks[1][2 * i], ranks[0][2 * i + 1], ranks[1][2 * i + 1]]
        assert same(whole, joined(runs))


def test_every_item_once_in_an_epoch():
    seen = [item for views in load(9, scale=(1, 1)) for item in item_of(views)]  # 36 places, 6 items
    epochs = [seen[i : i + 6] for i in range(0, 36, 6)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1, "each epoch has its own order"


def test_a_batch_larger_than_the_data_set():
    views = load(2, items(3), batch=8, scale=(1, 1))
    assert sorted(Counter(item for v in views for item in item_of(v)).values()) == [5, 5, 6]
    first = [item_of(views[0])[0], *item_of(views[0])[1:3]]
    assert sorted(first) == [0, 1, 2]


def test_seed_and_stream_make_a_difference():
    (a,), (b,), (c,) = load(1), load(1, seed=4), load(1, stream="unlabeled")
    assert not same(a, b)
    assert not same(a, c)


def test_opening_a_loader_leaves_the_global_generator():
    before = torch.get_rng_state()
    load(2, workers=1)
    assert torch.equal(before, torch.get_rng_state())


# ---- mistakes and ends -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken:
    path: str

    def __call__(self) -> np.ndarray:
        raise DataError(f"{self.path}: cannot be read as an image")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_cannot_be_read_is_told_in_a_sentence(workers):
    with (
        Loader([Photo("bad", Broken("bad.jpg"))], batch=2, crop=8, stream="unlabeled", workers=workers) as loader,
        pytest.raises(DataError) as raised,
    ):
        next(loader)
    assert str(raised.value) == "bad.jpg: cannot be read as an image"
    assert type(raised.value) is DataError
    assert not multiprocessing.active_children()
    assert next(loader, None) is None


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_an_error_comes_after_the_batches_before_it(device):
    things = [item.bare() for item in items()]
    things[_order(0, "unlabeled", 0, 6)[3]] = Photo("bad", Broken("bad.jpg"))
    with Loader(things, batch=1, crop=8, stream="unlabeled", device=device) as loader:
        assert [next(loader).step for _ in range(3)] == [0, 1, 2]
        with pytest.raises(DataError, match="bad.jpg"):
            next(loader)


def test_a_mask_of_another_size_is_named():
    odd = [Masked("odd", partial(coloured, 0, 40, 48), partial(blocks, 0, 40, 40))]
    with pytest.raises(DataError, match="odd: the image is 48 x 40 and its mask 40 x 40"):
        load(1, odd)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 5, "parts": 2}, "the labeled batch is 5, expected a multiple of 2"),
        ({"batch": 0}, "the labeled batch is 0"),
        ({"scale": (2.0, 0.5)}, "scale is"),
        ({"scale": (0.0, 0.5)}, "scale is"),
        ({"crop": 0}, "crop is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(OptionError, match=message):
        load(1, **options)


def test_no_items():
    with pytest.raises(DataError, match="there are no labeled images"):
        load(1, [])


def test_workers_outlive_an_interrupt():
    with Loader(items(), batch=4, crop=32, seed=3, stream="labeled", workers=2) as loader:
        views = [next(loader), next(loader)]  # one of each worker: both have started
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGINT)
        views += islice(loader, 6)
    assert all(map(same, views, load(8)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGpu:
    def test_views_are_those_of_the_cpu(self):
        for here, there in zip(load(12), load(12, workers=2, device="cuda"), strict=True):
            assert there.image.is_cuda
            assert torch.allclose(here.image, there.image.cpu(), atol=1e-5)
            assert torch.equal(here.leaf, there.leaf.cpu())
            assert torch.equal(here.valid, there.valid.cpu())
            assert (here.step, here.slots) == (there.step, there.slots)

    def test_parts_are_the_whole(self):
        halves = [load(4, part=part, parts=2, device="cuda") for part in (0, 1)]
        assert all(same(whole, joined([a, b])) for whole, a, b in zip(load(4, device="cuda"), *halves, strict=True))

    def test_nobody_waits_for_the_other(self):
        with Loader(items(), batch=4, crop=32, seed=3, stream="labeled", device="cuda") as loader:
            next(loader)  # compiles
            with no_waiting():
                list(islice(loader, 8))


def test_more_workers_than_cores_are_no_cause_for_a_warning():
    assert len(load(2, workers=(os.cpu_count() or 1) + 1)) == 2


def test_closing_ends_the_workers():
    loader = Loader(items(), batch=2, crop=16, stream="labeled", workers=2)
    next(loader)
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    loader.close()
    assert not multiprocessing.active_children()
    assert list(loader) == []
