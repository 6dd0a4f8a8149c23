"""The kernels for views, against PyTorch; in Triton's interpreter where there is no GPU."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag.data.config import ViewConfig
from logicdiag.data.dataset import IGNORE
from logicdiag.data.resample import place
from logicdiag.data.views import BLUR_RADIUS, IDENTITY, in_boxes, partner, plain_strong_view, plan_cutmix, plan_strong
from logicdiag.data.windows import PADDING, Packed, Window, develop, pack

kernels = pytest.importorskip("logicdiag.kernels.triton_views", reason="needs Triton", exc_type=ImportError)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ORDERS = list(permutations(range(4)))


def images(b: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Levels of 8 bits, among them black, white, grays and pure colours."""
    levels = np.random.default_rng(seed).integers(0, 256, (b, 3, height, width))
    levels[:, :, 0, 0] = np.random.default_rng(seed).choice([0, 128, 255], (b, 3))
    levels[:, :, -1, -1] = levels[:, :1, -1, -1]
    return torch.from_numpy(levels).float() / 255


def planned(b: int, **given: object) -> dict[str, torch.Tensor]:
    plan = {
        "factors": torch.tensor(IDENTITY).repeat(b, 1),
        "order": torch.arange(4, dtype=torch.int32).repeat(b, 1),
        "gray": torch.zeros(b, dtype=torch.bool),
        "sigma": torch.zeros(b),
    }
    return plan | {key: torch.as_tensor(value, dtype=plan[key].dtype) for key, value in given.items()}


def kernel(image: torch.Tensor, plan: dict[str, torch.Tensor], boxes: torch.Tensor | None = None) -> torch.Tensor:
    there = {key: tensor.to(DEVICE) for key, tensor in plan.items()}
    boxes = None if boxes is None else boxes.to(DEVICE)
    return kernels.strong_view(image.to(DEVICE), there, boxes, BLUR_RADIUS).cpu()


def assert_same(image: torch.Tensor, plan: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(kernel(image, plan), plain_strong_view(image, plan), atol=2e-6, rtol=0)


# ---- strong views ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", range(4))
def test_one_operation(operation):
    factors = torch.tensor(IDENTITY).repeat(5, 1)
    factors[:, operation] = torch.tensor([-0.5, -0.2, 0.1, 0.25, 0.5] if operation == 3 else [0, 0.5, 0.9, 1.3, 2])
    image, plan = images(5, 6, 7), planned(5, factors=factors)
    assert_same(image, plan)
    assert (kernel(image, plan) != image).flatten(1).any(1).all()


def test_every_order():
    rng = np.random.default_rng(1)
    factors = np.concatenate([rng.uniform(0.5, 1.5, (24, 3)), rng.uniform(-0.25, 0.25, (24, 1))], 1)
    image, plan = images(1, 5, 9).expand(24, -1, -1, -1), planned(24, factors=factors, order=ORDERS)
    assert_same(image, plan)
    assert len({view.numpy().tobytes() for view in kernel(image, plan)}) > 12, "orders make a difference"


def test_gray():
    image = images(2, 5, 5)
    out = kernel(image, planned(2, gray=[True, False]))
    assert torch.equal(out[0, 0], out[0, 2])
    assert torch.equal(out[1], image[1])
    assert_same(image, planned(2, gray=[True, False]))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 4), (20, 17)])
def test_blur_repeats_the_border(size):
    assert_same(images(4, *size), planned(4, sigma=[0.1, 0.7, 0.0, 2.0]))


def test_an_image_of_several_blocks():
    """The mean gray is over all of them."""
    image = images(2, 70, 33) * torch.linspace(0, 1, 70)[:, None]
    assert_same(image, planned(2, factors=[[1.2, 0.3, 0.8, 0.1], [1, 1.5, 1, 0]], sigma=[1.5, 0]))


def test_no_change_leaves_every_bit():
    image = torch.rand(3, 3, 33, 34, generator=torch.Generator().manual_seed(0))
    for order in ORDERS[::5]:
        assert torch.equal(kernel(image, planned(3, order=[order] * 3)), image)


def test_a_batch_is_its_samples_one_by_one():
    image = images(4, 12, 13)
    plan = {
        key: torch.from_numpy(array)
        for key, array in plan_strong(ViewConfig(jitter=1), seed=0, stream="u", step=1, slots=range(4)).items()
    }
    together = kernel(image, plan)
    for i in range(4):
        alone = kernel(image[i : i + 1], {key: tensor[i : i + 1] for key, tensor in plan.items()})
        assert torch.equal(alone[0], together[i])


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    b=st.integers(1, 3),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    wild=st.booleans(),
)
def test_any_plan(seed, b, height, width, wild):
    config = ViewConfig(brightness=1, contrast=1, saturation=1, hue=0.5, gray=0.5) if wild else ViewConfig()
    plan = plan_strong(config, seed=seed, stream="u", step=0, slots=range(b))
    assert_same(images(b, height, width, seed), {key: torch.from_numpy(array) for key, array in plan.items()})


@pytest.mark.parametrize("b", [1, 2, 5])
def test_mixed(b):
    image = images(b, 12, 20)
    boxes = plan_cutmix(seed=0, stream="u", step=b, slots=range(b), size=(12, 20), probability=0.7)["boxes"]
    boxes[-1] = (2, 3, 12, 20)
    boxes = torch.from_numpy(boxes)
    plan = planned(b, sigma=[1.0 * (i % 2) for i in range(b)])
    plain = plain_strong_view(image, plan)
    expected = torch.where(in_boxes(boxes, (12, 20))[:, None], partner(plain), plain)
    torch.testing.assert_close(kernel(image, plan, boxes), expected, atol=2e-6, rtol=0)


# ---- weak views --------------------------------------------------------------------------------------------------


def windows(b: int, seed: int, crop: int, scale: tuple[float, float], masked: bool) -> Packed:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(b):
        height, width = rng.integers(3, 40, 2)
        factor = rng.uniform(*scale)
        rows = place(int(height), factor, crop, rng)._replace(flip=bool(rng.random() < 0.2))
        columns = place(int(width), factor, crop, rng)._replace(flip=bool(rng.random() < 0.5))
        size = (rows.stop - rows.start, columns.stop - columns.start)
        mask = rng.choice([0, 1, 7, IGNORE], size).astype(np.uint8) if masked else None
        found.append(Window(rng.integers(0, 256, (*size, 3), dtype=np.uint8), mask, rows, columns))
    return pack(found)


def assert_developed_alike(packed: Packed) -> None:
    image, leaf, valid = develop(packed, torch.device("cpu"))
    there = packed.to(DEVICE)
    out = kernels.develop(there.buffer, there.table, there.crop, there.masked, PADDING, IGNORE)
    torch.testing.assert_close(out[0].cpu(), image, atol=2e-6, rtol=0)
    assert (out[1] is None) == (leaf is None)
    if leaf is not None:
        assert torch.equal(out[1].cpu(), leaf)
    assert torch.equal(out[2].cpu(), valid)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    b=st.integers(1, 3),
    crop=st.integers(1, 20),
    scale=st.sampled_from([(0.5, 2.0), (1.0, 1.0), (0.2, 0.6), (2.0, 4.0)]),
    masked=st.booleans(),
)
def test_any_window(seed, b, crop, scale, masked):
    assert_developed_alike(windows(b, seed, crop, scale, masked))


def test_a_crop_of_several_tiles():
    assert_developed_alike(windows(2, 5, 70, (0.5, 2.0), True))
