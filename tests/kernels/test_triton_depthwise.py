"""The kernels for depthwise convolutions, against PyTorch in float64; in Triton's interpreter where there is no GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.gpu import no_waiting

kernels = pytest.importorskip("logicdiag.kernels.triton_depthwise", reason="needs Triton", exc_type=ImportError)
Window = kernels.Window

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """The interpreter takes its time for each; on a GPU they are as they are in training."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE.type != "cuda":
            for name, value in {"SHARES": 24, "SUM_WARPS": 8, "TOGETHER": 64}.items():
                patch.setattr(kernels, name, value)
        yield


def drawn(b: int, c: int, height: int, width: int, window: Window, dtype: torch.dtype = torch.float32, seed: int = 0):
    """Input, weights and the gradient of the output."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(b, c, height, width, generator=g).to(DEVICE, dtype, memory_format=torch.channels_last)
    weight = torch.randn(c, 1, window.height, window.width, generator=g).to(DEVICE)
    grad = torch.randn(b, c, *window.out(height, width), generator=g).to(DEVICE, dtype)
    return x, weight, grad


def plain(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    x = F.pad(x, (window.left, window.right, window.top, window.bottom))
    return F.conv2d(x, weight, stride=window.stride, dilation=window.dilation, groups=x.shape[1])


def found(conv, x: Tensor, weight: Tensor, window: Window, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the gradients of input and weights."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    out = conv(x, weight, window)
    return out.detach(), *torch.autograd.grad(out, (x, weight), grad)


def assert_same(x: Tensor, weight: Tensor, window: Window, grad: Tensor, enough: int = 0) -> None:
    """`enough` decides how many rows a thread has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ENOUGH", enough)
        ours = found(kernels.conv2d, x, weight, window, grad)
    rounded = weight.to(x.dtype)
    theirs = found(plain, x.double(), rounded.double(), window, grad.double())
    for mine, expected, dtype in zip(ours, theirs, (x.dtype, x.dtype, weight.dtype), strict=True):
        assert mine.dtype == dtype
        size = expected.abs().max().item() + 1
        torch.testing.assert_close(mine.double(), expected, atol=2e-6 * size, rtol=torch.finfo(dtype).eps)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    assert ours[1].is_contiguous(memory_format=torch.channels_last)
    assert ours[2].stride() == weight.stride()


windows = st.builds(
    Window,
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 3),
    top=st.integers(0, 3),
    left=st.integers(0, 3),
    bottom=st.integers(0, 3),
    right=st.integers(0, 3),
)


@settings(max_examples=20, deadline=None)
@given(
    window=windows,
    b=st.integers(1, 2),
    c=st.sampled_from([2, 7, 24, 33, 72]),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    enough=st.sampled_from([0, 1, kernels.ENOUGH]),
    seed=st.integers(0, 1000),
)
def test_any_window(window, b, c, size, enough, seed):
    reach = window._replace(stride=1).out(*size)
    size = (size[0] + max(0, 1 - reach[0]), size[1] + max(0, 1 - reach[1]))  # room for one output at least
    x, weight, grad = drawn(b, c, *size, window, seed=seed)
    assert_same(x, weight, window, grad, enough)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "window",
    [
        Window(3, 3, 1, 1, 1, 1, 1, 1),
        Window(3, 3, 2, 1, 0, 0, 1, 1),  # TensorFlow's "same", of an even size
        Window(5, 5, 2, 1, 1, 1, 2, 2),
        Window(5, 5, 1, 2, 4, 4, 4, 4),
        Window(3, 3, 1, 18, 18, 18, 18, 18),  # reaches beyond the image with all taps but one
    ],
)
def test_what_encoders_and_decoders_have(dtype, window):
    assert_same(*_split(drawn(2, 40, 8, 6, window, dtype), window))


def _split(made: tuple[Tensor, Tensor, Tensor], window: Window) -> tuple[Tensor, Tensor, Window, Tensor]:
    x, weight, grad = made
    return x, weight, window, grad


def test_the_largest_window():
    window = Window(7, 7, 1, 1, 3, 3, 3, 3)
    assert_same(*_split(drawn(1, 9, 8, 5, window), window))


def test_the_weights_of_an_ordered_model_have_their_gradient_in_their_order():
    window = Window(3, 3, 1, 1, 1, 1, 1, 1)
    x, weight, grad = drawn(1, 16, 4, 4, window)
    assert_same(x, weight.to(memory_format=torch.channels_last), window, grad)


def test_only_what_is_asked_for():
    window = Window(3, 3, 1, 1, 1, 1, 1, 1)
    x, weight, grad = drawn(1, 8, 4, 4, window)
    both = found(kernels.conv2d, x, weight, window, grad)
    alone = torch.autograd.grad(kernels.conv2d(x.requires_grad_(), weight, window), x, grad)
    assert torch.equal(alone[0], both[1])
    x.requires_grad_(False)
    alone = torch.autograd.grad(kernels.conv2d(x, weight.requires_grad_(), window), weight, grad)
    assert torch.equal(alone[0], both[2])
    assert not kernels.conv2d(x, weight.detach(), window).requires_grad


def test_the_same_gradient_each_time():
    """Sums of many programs, in float32, where another order would show."""
    window = Window(3, 3, 1, 1, 1, 1, 1, 1)
    x, weight, grad = drawn(2, 40, 9, 8, window)
    first, second = (found(kernels.conv2d, x, weight, window, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("window", [Window(3, 3, 1, 1, 1, 1, 1, 1), Window(5, 5, 2, 1, 1, 1, 2, 2)])
def test_captured(window):
    """Without a word from the host, and as large as in training."""
    x, weight, grad = drawn(4, 144, 56, 56, window, torch.bfloat16)
    expected = found(kernels.conv2d, x, weight, window, grad)
    graph = torch.cuda.CUDAGraph()
    with no_waiting():
        found(kernels.conv2d, x, weight, window, grad)
    with torch.cuda.graph(graph):
        ours = found(kernels.conv2d, x, weight, window, grad)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    theirs = found(plain, x.double(), weight.bfloat16().double(), window, grad.double())
    for mine, exact in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=1e-3, rtol=2e-2)
