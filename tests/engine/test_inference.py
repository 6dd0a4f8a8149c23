"""Logits of an image of any size, in each mode."""

import pytest
import torch
from torch import nn

import logicdiag as ld
from logicdiag.engine.inference import InferenceConfig, predict_logits, starts, where_to_run


class Pointwise(nn.Module):
    """Logits that depend on the pixel alone: no mode of inference may change them, up to resizing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, image):
        self.seen.append(tuple(image.shape[-2:]))
        assert min(image.shape[-2:]) >= 32
        return self.layer(image)


class Columns(Pointwise):
    """The column in the window it was shown, and the number of the window."""

    def forward(self, image):
        number = len(self.seen)
        super().forward(image)
        column = torch.arange(image.shape[-1]).expand(image.shape[0], 1, *image.shape[-2:]).float()
        return torch.cat([column, torch.full_like(column, number)], 1)


def picture(*size, batch=1):
    return torch.rand(batch, 3, *size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [(40, 50), (33, 97), (32, 32)])
def test_one_window_is_the_whole(size):
    image = picture(*size, batch=2)
    model = nn.Conv2d(3, 5, 3, padding=1)
    whole = predict_logits(model, image)
    torch.testing.assert_close(whole, model(image))
    torch.testing.assert_close(predict_logits(model, image, InferenceConfig("slide", 97)), whole)
    torch.testing.assert_close(predict_logits(model, image, InferenceConfig("short_side", min(size))), whole)


@pytest.mark.parametrize("size", [(1, 1), (5, 100), (70, 31), (100, 64)])
@pytest.mark.parametrize("config", [InferenceConfig(), InferenceConfig("slide", 32), InferenceConfig("slide", 40, 7)])
def test_windows_leave_a_pointwise_model_as_it_is(size, config):
    image, model = picture(*size), Pointwise()
    torch.testing.assert_close(predict_logits(model, image, config), model.layer(image))


@pytest.mark.parametrize(("size", "seen"), [((50, 100), (40, 80)), ((33, 30), (44, 40)), ((1, 7), (40, 280))])
def test_the_short_side_is_resized_and_back(size, seen):
    model = Pointwise()
    logits = predict_logits(model, picture(*size), InferenceConfig("short_side", 40))
    assert model.seen == [seen]
    assert logits.shape == (1, 4, *size)


def test_the_short_side_keeps_what_is_smooth():
    image = torch.linspace(0, 1, 90).expand(1, 3, 60, 90)
    model = Pointwise()
    logits = predict_logits(model, image, InferenceConfig("short_side", 40))
    torch.testing.assert_close(logits, model.layer(image), atol=0.02, rtol=0)


def test_overlaps_are_averaged():
    """48 columns in windows of 32, 16 apart: columns 16 to 31 are in both."""
    logits = predict_logits(Columns(), picture(32, 48), InferenceConfig("slide", 32, 16))[0, :, 0]
    columns = torch.arange(48.0)
    torch.testing.assert_close(logits[0, :16], columns[:16])
    torch.testing.assert_close(logits[0, 16:32], columns[16:32] - 8)
    torch.testing.assert_close(logits[0, 32:], columns[32:] - 16)
    assert logits[1].tolist() == [0.0] * 16 + [0.5] * 16 + [1.0] * 16


@pytest.mark.parametrize("length", range(1, 40))
@pytest.mark.parametrize("stride", [1, 4, 7])
def test_windows_cover_everything_and_stay_inside(length, stride):
    found = starts(length, 7, stride)
    covered = {place for start in found for place in range(start, start + 7)}
    assert covered >= set(range(length))
    assert found == sorted(set(found))
    assert found[-1] == max(0, length - 7)


def test_the_default_stride_is_two_thirds():
    model = Pointwise()
    predict_logits(model, picture(48, 88), InferenceConfig("slide", 48))
    assert len(model.seen) == len(starts(88, 48, 32)) == 3


def test_precision():
    image, model = picture(40, 40), nn.Conv2d(3, 5, 3, padding=1)
    half = predict_logits(model, image, precision="bf16")
    assert half.dtype == torch.float32
    full = predict_logits(model, image)
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, atol=0.03, rtol=0.03)
    assert not full.requires_grad
    with pytest.raises(ld.LogicDiagError, match="precision is 'fp8', expected one of fp32, bf16, fp16"):
        predict_logits(model, image, precision="fp8")


def test_the_precision_of_the_training_is_kept_on_a_gpu_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert where_to_run("cpu", None, "bf16") == (torch.device("cpu"), "fp32")
    assert where_to_run("cuda:1", None, "bf16") == (torch.device("cuda:1"), "bf16")
    assert where_to_run("cpu", "fp16", "bf16") == (torch.device("cpu"), "fp16")
    assert where_to_run("auto", None, "bf16") == where_to_run(None, None, "bf16")
    for device, says in (
        ("gpu", "device is 'gpu', expected auto, cpu"),
        ("cuda:2", "device is cuda:2, but this machine"),
    ):
        with pytest.raises(ld.LogicDiagError, match=says):
            where_to_run(device, None, "bf16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "slid"}, "inference.mode is 'slid', expected one of whole, short_side, slide.*'slide'"),
        ({"mode": "slide"}, "inference.size is null, expected at least 32 for mode slide"),
        ({"mode": "short_side", "size": 8}, "inference.size is 8, expected at least 32"),
        ({"mode": "slide", "size": 64, "stride": 65}, "inference.stride is 65, expected 1 to 64"),
        ({"mode": "slide", "size": 64, "stride": 0}, "inference.stride is 0, expected 1 to 64"),
        ({"size": 64}, "inference.size is 64, but inference.mode is whole"),
        ({"mode": "short_side", "size": 64, "stride": 3}, "inference.stride is 3, but inference.mode is short_side"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ld.LogicDiagError, match=message):
        InferenceConfig(**options)
