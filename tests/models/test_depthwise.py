"""Depthwise convolutions of a model: by the kernel where it applies, and by torch, with the same result."""

import copy
import pickle

import pytest
import torch
from torch import nn

from logicdiag.kernels import depthwise_cpu
from logicdiag.models import depthwise
from logicdiag.models.depthwise import DepthwiseConv2d, fuse_depthwise
from logicdiag.models.encoder import build_encoder
from tests.models.tester import built, images

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LITE = "tf_efficientnet_lite0"


@pytest.fixture
def calls(monkeypatch):
    """The kernel is taken on any device; how often, and for which types of numbers."""
    kernels = pytest.importorskip("logicdiag.kernels.triton_depthwise", reason="needs Triton", exc_type=ImportError)
    seen = []

    def counted(x, weight, window):
        seen.append(x.dtype)
        return conv2d(x, weight, window)

    conv2d = kernels.conv2d
    monkeypatch.setattr(kernels, "conv2d", counted)
    monkeypatch.setattr(depthwise, "fuses", lambda device: True)
    if DEVICE.type != "cuda":  # the interpreter takes its time for each program
        few = {"TILE": 1 << 13, "NARROWEST": 256, "WIDEST": 1024, "SHARES": 16, "SUM_WARPS": 64, "TOGETHER": 1024}
        for name, value in few.items():
            monkeypatch.setattr(kernels, name, value)
    return seen


def conv(channels: int = 8, **options: object) -> nn.Conv2d:
    made = nn.Conv2d(
        channels, channels, **{"kernel_size": 3, "padding": 1, "bias": False, "groups": channels} | options
    )
    return made.to(DEVICE, memory_format=torch.channels_last)


def ordered(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(memory_format=torch.channels_last)


def test_lite_has_the_same_features_and_gradients(calls):
    torch.manual_seed(0)
    plain = build_encoder(LITE).to(DEVICE, torch.float64).eval().to(memory_format=torch.channels_last)
    fused = fuse_depthwise(copy.deepcopy(plain)).float()
    x = images(1, 32, 40).to(DEVICE, memory_format=torch.channels_last)
    theirs, ours = plain(x.double()), fused(x)
    for expected, found in zip(theirs, ours, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
    for features in (theirs, ours):
        sum(part.square().mean() for part in features).backward()
    assert len(calls) == 16
    for (name, mine), theirs in zip(fused.named_parameters(), plain.parameters(), strict=True):
        scale = theirs.grad.abs().max().item()
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=1e-3 * scale, msg=name)


def test_names_parameters_and_modules_stay(calls):
    encoder = build_encoder(LITE)
    before, modules = encoder.state_dict(), dict(encoder.named_modules())
    after = fuse_depthwise(encoder).state_dict()
    assert list(before) == list(after)
    assert all(before[key].data_ptr() == after[key].data_ptr() for key in before)
    assert all(modules[name] is module for name, module in encoder.named_modules())
    assert sum(isinstance(module, DepthwiseConv2d) for module in modules.values()) == 16
    assert sum(module.same for module in modules.values() if isinstance(module, DepthwiseConv2d)) == 3


def test_models_are_built_with_it():
    """Encoder and decoder: three rates, and two convolutions after them."""
    model = built(encoder=LITE, decoder_channels=16)
    assert sum(isinstance(module, DepthwiseConv2d) for module in model.modules()) == 16 + 3 + 2


def test_a_copy_has_its_own_weights(calls):
    first = fuse_depthwise(nn.Sequential(conv()))
    x = ordered(1, 8, 5, 5)
    for second in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        torch.testing.assert_close(second(x), first(x))
        nn.init.zeros_(second[0].weight)
        assert first(x).any()
        assert not second(x).any()
    assert len(calls) == 8


@pytest.mark.parametrize("size", [(8, 8), (7, 10)])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 2, 1), (5, 2, 1), (3, 1, 2), (4, 1, 1)])
def test_same_padding_is_timm_s(size, kernel, stride, dilation):
    from logicdiag.models.torchvision_shim import import_timm

    options = {"stride": stride, "dilation": dilation, "groups": 8, "bias": False}
    plain = import_timm().layers.Conv2dSame(8, 8, kernel, **options)
    fused = fuse_depthwise(copy.deepcopy(plain))
    assert type(fused) is DepthwiseConv2d
    assert type(plain) is not DepthwiseConv2d
    x = torch.randn(1, 8, *size)
    assert torch.equal(fused(x), plain(x))


def test_autocast(calls):
    plain, x = conv(), ordered(2, 8, 6, 6).requires_grad_()
    fused = fuse_depthwise(copy.deepcopy(plain))
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out, expected = fused(x), plain(x)
    assert calls == [torch.bfloat16]
    assert out.dtype == expected.dtype
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert x.grad.dtype == fused.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("why", "x"),
    [
        ("another order of memory", torch.randn(1, 8, 5, 5)),
        ("float64", torch.randn(1, 8, 5, 5).double().to(memory_format=torch.channels_last)),
        ("no image", torch.randn(0, 8, 5, 5).to(memory_format=torch.channels_last)),
        ("no batch", torch.randn(8, 5, 5)),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_torch_does_the_rest(calls, why, x):
    plain, x = conv().to(x.dtype), x.to(DEVICE)
    assert torch.equal(fuse_depthwise(copy.deepcopy(plain))(x), plain(x))
    assert not calls, why


def test_mistakes_are_torch_s(calls):
    fused = fuse_depthwise(conv(padding=0))
    for x in (ordered(1, 8, 2, 5), ordered(1, 9, 5, 5), ordered(1, 8, 5, 5).bfloat16()):
        with pytest.raises(RuntimeError):
            fused(x)
    assert not calls


@pytest.mark.skipif(DEVICE.type != "cpu", reason="there is a GPU")
def test_on_a_cpu_torch_does_all():
    plain, x = conv(), ordered(1, 8, 5, 5)
    assert torch.equal(fuse_depthwise(copy.deepcopy(plain))(x), plain(x))


def test_compilers_see_torch_s(calls, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    fuse_depthwise(conv())(ordered(1, 8, 5, 5))
    assert not calls


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 4},
        {"groups": 1},
        {"bias": True},
        {"stride": 3},
        {"stride": (1, 2)},
        {"dilation": (1, 2)},
        {"kernel_size": 9},
        {"padding": "same"},
        {"padding_mode": "reflect"},
        {"out_channels": 16},
    ],
    ids=str,
)
def test_others_are_left_alone(options):
    made = nn.Conv2d(**{"in_channels": 8, "out_channels": 8, "kernel_size": 3, "groups": 8, "bias": False} | options)
    assert type(fuse_depthwise(made)) is nn.Conv2d


@pytest.fixture
def pieces(monkeypatch):
    """How often gradients are to be found in pieces."""
    seen = []

    def counted(x, weight, window):
        seen.append(window)
        return conv2d(x, weight, window)

    conv2d = depthwise_cpu.conv2d
    monkeypatch.setattr(depthwise_cpu, "conv2d", counted)
    return seen


@pytest.mark.skipif(DEVICE.type == "cuda", reason="of a CPU")
@pytest.mark.parametrize(
    "made",
    [
        lambda: nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False),
        lambda: nn.Conv2d(8, 8, 5, padding=4, dilation=2, groups=8, bias=False),
        lambda: nn.Conv2d(8, 8, 3, padding=18, dilation=18, groups=8, bias=False),
        lambda: nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False),
        lambda: timm_same(8, 8, 5, stride=2, groups=8, bias=False),
    ],
    ids=["large", "dilated", "wide", "stride", "same"],
)
def test_on_a_cpu_in_bfloat16_gradients_are_found_in_pieces(made, pieces):
    torch.manual_seed(0)
    plain = made()
    fused = fuse_depthwise(copy.deepcopy(plain))
    x = torch.randn(2, 8, 14, 11).to(memory_format=torch.channels_last)
    found = []
    for conv in (plain, fused):
        mine = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = conv(mine)
        assert out.dtype == torch.bfloat16
        torch.manual_seed(1)
        out.backward(torch.randn(out.shape).bfloat16())
        found.append((out.detach(), mine.grad, conv.weight.grad))
    assert len(pieces) == 1
    for theirs, ours in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()


def timm_same(*args, **options):
    from logicdiag.models.torchvision_shim import import_timm

    return import_timm().layers.Conv2dSame(*args, **options)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="of a CPU")
def test_in_float32_a_cpu_does_what_it_did_before(pieces):
    conv = fuse_depthwise(nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False))
    conv(torch.randn(1, 8, 9, 9)).sum().backward()
    assert not pieces


@pytest.mark.skipif(DEVICE.type == "cuda", reason="of a CPU")
def test_lite_learns_in_pieces_in_bfloat16(pieces):
    """All layers of the encoder but those of 3 x 3 that skip no rows; and every rate of the decoder."""
    model = built(encoder=LITE, decoder_channels=16)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images(2, 64, 64))
    logits.float().square().mean().backward()
    special = [m for m in model.modules() if isinstance(m, DepthwiseConv2d)]
    special = [m for m in special if max(m.kernel_size) > 3 or m.stride[0] > 1 or m.dilation[0] > 1]
    assert len(pieces) == len(special) > 10
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
