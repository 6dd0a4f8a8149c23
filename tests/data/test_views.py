"""Strong views and CutMix, against Pillow, colorsys and plain loops."""

import colorsys
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from logicdiag.data.config import ViewConfig
from logicdiag.data.views import (
    blurred,
    brightened,
    contrasted,
    draws,
    grayed,
    in_boxes,
    partner,
    plan_cutmix,
    plan_strong,
    rotated_hue,
    saturated,
    strong_view,
)
from tests.gpu import no_waiting

KEY = {"seed": 1, "stream": "unlabeled", "step": 7}
BOXES = torch.tensor([[0, 0, 0, 0], [3, 5, 20, 24]] * 3, dtype=torch.int32)
NOTHING = ViewConfig(brightness=0, contrast=0, saturation=0, hue=0, jitter=0, gray=0, blur=0, cutmix=0)


@pytest.fixture
def image() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 20, 24))).float() / 255


def on(device: torch.device | str, plan: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).to(device) for name, array in plan.items()}


def strong(image: torch.Tensor, config: ViewConfig, slots: Sequence[int] | None = None, **key) -> torch.Tensor:
    slots = range(len(image)) if slots is None else slots
    return strong_view(image, on(image.device, plan_strong(config, **(KEY | key), slots=slots)))


def cutmix(slots: Sequence[int], size: tuple[int, int], probability: float, step: int = 0) -> torch.Tensor:
    plan = plan_cutmix(seed=0, stream="u", step=step, slots=slots, size=size, probability=probability)
    return in_boxes(torch.from_numpy(plan["boxes"]), size)


def pillow(image: torch.Tensor) -> Image.Image:
    return Image.fromarray((image * 255).round().permute(1, 2, 0).to(torch.uint8).numpy())


def tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


# ---- the operations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "enhance"),
    [(brightened, ImageEnhance.Brightness), (contrasted, ImageEnhance.Contrast), (saturated, ImageEnhance.Color)],
)
def test_enhancing_is_that_of_pillow(image, operation, enhance):
    factors = torch.tensor([0.0, 0.5, 0.8, 1.0, 1.3, 1.5])
    out = operation(image, factors)
    for before, after, factor in zip(image, out, factors.tolist(), strict=True):
        expected = tensor(enhance(pillow(before)).enhance(factor))
        assert (after - expected).abs().max() < 2.1 / 255  # Pillow rounds the gray and the result


def test_gray_is_that_of_pillow(image):
    out = grayed(image)
    for before, after in zip(image, out, strict=True):
        assert (after - tensor(pillow(before).convert("L"))).abs().max() < 1.1 / 255


def test_hue_is_that_of_colorsys(image):
    image[0, :, 0, :4] = torch.tensor([[0.0, 1, 0.4, 1], [0.0, 1, 0.4, 0], [0.0, 1, 0.4, 0]])  # black white gray red
    factors = torch.tensor([-0.25, -0.5, 0.0, 0.1, 0.25, 0.5])
    out = rotated_hue(image, factors)
    for before, after, factor in zip(image, out, factors.tolist(), strict=True):
        for x, y in zip(before.flatten(1).T.tolist(), after.flatten(1).T.tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*x)
            assert y == pytest.approx(colorsys.hsv_to_rgb((h + factor) % 1, s, v), abs=2e-6)


def test_blur_is_a_gaussian_mean_over_the_neighbourhood(image):
    sigmas = torch.tensor([0.1, 0.5, 1.0, 1.5, 2.0, 0.7])
    out = blurred(image, sigmas)
    height, width = image.shape[-2:]
    for before, after, sigma in zip(image.double(), out, sigmas.tolist(), strict=True):
        for y, x in [(0, 0), (10, 12), (19, 23), (3, 20)]:
            total, weights = torch.zeros(3, dtype=torch.float64), 0.0
            for dy in range(-6, 7):
                for dx in range(-6, 7):
                    weight = math.exp(-(dy * dy + dx * dx) / (2 * sigma * sigma))
                    total += weight * before[:, min(max(y + dy, 0), height - 1), min(max(x + dx, 0), width - 1)]
                    weights += weight
            assert torch.allclose(after[:, y, x].double(), total / weights, atol=1e-6)


# ---- the view ----------------------------------------------------------------------------------------------------


def test_a_batch_is_its_samples_one_by_one(image):
    together = strong(image, ViewConfig())
    for slot in range(6):
        assert torch.equal(together[slot], strong(image[slot : slot + 1], ViewConfig(), [slot])[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(image):
    here = strong(image, ViewConfig())
    there = strong(image.cuda(), ViewConfig())
    assert torch.allclose(here, there.cpu(), atol=1e-5)
    plan, boxes = on("cuda", plan_strong(ViewConfig(), **KEY, slots=range(6))), BOXES.cuda()
    image = image.cuda()
    with no_waiting():
        strong_view(image, plan, boxes)


def test_in_range_and_the_weak_view_is_left_alone(image):
    before = image.clone()
    wild = ViewConfig(brightness=1, contrast=1, saturation=1, hue=0.5, jitter=1, gray=0.3, blur=0.5)
    for step in range(20):
        out = strong(image, wild, step=step)
        assert 0 <= out.min() <= out.max() <= 1
    assert torch.equal(image, before)


def test_nothing_on_nothing_happens(image):
    assert torch.equal(strong(image, NOTHING), image)


@pytest.mark.parametrize(
    ("config", "share"),
    [
        (ViewConfig(gray=0, blur=0), 0.8),
        (ViewConfig(jitter=0, blur=0), 0.2),
        (ViewConfig(jitter=0, gray=0), 0.48),  # a sigma below 0.17 leaves every bit
        (ViewConfig(jitter=1, gray=0, blur=0), 1.0),
    ],
)
def test_probabilities(config, share):
    image = torch.rand(2000, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    out = strong(image, config)
    assert abs(float((out != image).flatten(1).any(1).float().mean()) - share) < 0.04


def test_factors_cover_their_range():
    image = torch.full((400, 3, 2, 2), 0.5)
    only = ViewConfig(brightness=0.4, contrast=0, saturation=0, hue=0, jitter=1, gray=0, blur=0)
    factors = strong(image, only)[:, 0, 0, 0] / 0.5
    assert 0.6 <= factors.min() < 0.63
    assert 1.37 < factors.max() <= 1.4001
    assert abs(float(factors.mean()) - 1) < 0.04


def test_the_order_of_the_colour_operations_varies():
    """Contrast after brightness is another thing than brightness after contrast."""
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).expand(40, -1, -1, -1)
    config = ViewConfig(brightness=0.5, contrast=0.5, saturation=0, hue=0, jitter=1, gray=0, blur=0)
    out = strong(image, config)
    brightest_first = 0
    for sample, g in zip(out, draws(KEY["seed"], "unlabeled.strong", KEY["step"], range(40)), strict=True):
        g.random(3)
        b, c = (torch.tensor([g.uniform(0.5, 1.5)], dtype=torch.float32) for _ in range(2))
        first = contrasted(brightened(image[:1], b), c)[0]
        second = brightened(contrasted(image[:1], c), b)[0]
        assert torch.equal(sample, first) or torch.equal(sample, second)
        brightest_first += torch.equal(sample, first)
    assert 8 < brightest_first < 32


@pytest.mark.parametrize("other", [{"seed": 2}, {"stream": "second"}, {"step": 8}])
def test_another_key_is_another_view(image, other):
    config = ViewConfig(jitter=1)
    a, b = (strong(image, config, **key) for key in ({}, other))
    assert not torch.equal(a, b)


def test_draws_are_those_of_the_slot():
    several = [g.random() for g in draws(0, "a", 3, (0, 1, 2))]
    assert len(set(several)) == 3
    assert [g.random() for g in draws(0, "a", 3, (2, 0))] == [several[2], several[0]]


# ---- CutMix ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(64, 64), (40, 120)])
def test_boxes(size):
    height, width = size
    boxes = cutmix(range(400), size, 0.5)
    assert boxes.shape == (400, *size)
    drawn = [box for box in boxes if box.any()]
    assert abs(len(drawn) / 400 - 0.5) < 0.08
    areas = []
    for box in drawn:
        rows, columns = box.any(1), box.any(0)
        assert torch.equal(box, rows[:, None] & columns[None])
        tall, wide = int(rows.sum()), int(columns.sum())
        assert rows.nonzero().max() - rows.nonzero().min() == tall - 1
        assert columns.nonzero().max() - columns.nonzero().min() == wide - 1
        areas.append(tall * wide / (height * width))
        assert 0.3 * wide / width - 1 / height <= tall / height <= (wide + 1) / width / 0.3
    assert 0.01 < min(areas) < 0.06
    assert 0.34 < max(areas) <= 0.4
    assert abs(np.mean(areas) - 0.2) < 0.03


def test_boxes_are_keyed():
    boxes = cutmix(range(8), (32, 32), 1.0)
    assert torch.equal(boxes[4:], cutmix(range(4, 8), (32, 32), 1.0))
    assert not torch.equal(boxes, cutmix(range(8), (32, 32), 1.0, step=1))
    assert not cutmix(range(8), (32, 32), 0.0).any()
    assert boxes.flatten(1).any(1).all()


def test_views_are_mixed_by_boxes(image):
    plan = on("cpu", plan_strong(ViewConfig(jitter=1), **KEY, slots=range(6)))
    plain, mixed = strong_view(image, plan), strong_view(image, plan, BOXES)
    assert torch.equal(mixed[::2], plain[::2])
    inside = torch.zeros(20, 24, dtype=torch.bool)
    inside[3:20, 5:24] = True
    assert torch.equal(mixed[1::2][:, :, inside], plain[::2][:, :, inside])
    assert torch.equal(mixed[1::2][:, :, ~inside], plain[1::2][:, :, ~inside])


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_partners(n):
    tensor = torch.arange(n * 2).view(n, 2)
    swapped = partner(tensor)
    assert torch.equal(partner(swapped), tensor)
    assert [int(row[0]) // 2 for row in swapped] == {1: [0], 2: [1, 0], 5: [1, 0, 3, 2, 4], 6: [1, 0, 3, 2, 5, 4]}[n]
