"""Depthwise convolutions in pieces, on a CPU: the gradients are those of the plain convolution."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from logicdiag.kernels.depthwise_cpu import Window, conv2d


@st.composite
def windows(draw):
    dilation = draw(st.sampled_from([1, 1, 2, 3, 6, 12]))
    stride = draw(st.sampled_from([1, 2])) if dilation == 1 else 1
    kernel = draw(st.tuples(st.integers(3, 7), st.integers(3, 7)))
    padding = tuple(draw(st.integers(0, (side - 1) * dilation)) for side in kernel)
    return Window(kernel, stride, padding, dilation)


def with_gradients(found, x, weight, given):
    return found, *torch.autograd.grad(found, (x, weight), given.to(found))


@settings(deadline=None)
@given(
    windows(), st.integers(1, 20), st.integers(1, 20), st.sampled_from([torch.float64, torch.bfloat16]), st.booleans()
)
def test_as_the_plain_convolution(window, height, width, dtype, ordered):
    assume(window.pays)
    sizes = (height, width)
    reach = [
        n + 2 * p - (k - 1) * window.dilation for n, p, k in zip(sizes, window.padding, window.kernel, strict=True)
    ]
    assume(min(reach) >= 1)
    torch.manual_seed(0)
    x = torch.randn(2, 3, height, width).to(dtype)
    x = (x.to(memory_format=torch.channels_last) if ordered else x).requires_grad_()
    weight = torch.randn(3, 1, *window.kernel).to(dtype).requires_grad_()
    exact = [x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()]
    ours = conv2d(x, weight, window)
    plain = F.conv2d(*exact, None, window.stride, window.padding, window.dilation, 3)
    tolerance = 1e-5 if dtype == torch.float64 else 2e-2  # a step of bfloat16 is 2 ** -8
    assert ours.dtype == dtype
    given = torch.randn(plain.shape).bfloat16()
    both = with_gradients(ours, x, weight, given), with_gradients(plain, *exact, given)
    for mine, theirs in zip(*both, strict=True):
        assert mine.shape == theirs.shape
        scale = theirs.norm().item() or 1.0
        assert (mine.double() - theirs).norm().item() <= tolerance * scale


def test_only_what_is_asked_for_is_found():
    window = Window((5, 5), padding=(2, 2))
    x, weight = torch.randn(1, 4, 9, 9), torch.randn(4, 1, 5, 5)
    for asked in (x, weight):
        asked.requires_grad_()
        conv2d(x, weight, window).sum().backward()
        assert asked.grad is not None
        asked.requires_grad_(False)


@pytest.mark.parametrize(
    ("window", "pays"),
    [
        (Window((3, 3), padding=(1, 1)), False),  # PyTorch's own are as fast
        (Window((5, 5), padding=(2, 2)), True),
        (Window((3, 3), stride=2), True),
        (Window((3, 3), padding=(6, 6), dilation=6), True),
        (Window((3, 3), stride=2, dilation=2), False),
        (Window((1, 5)), False),
        (Window((5, 5), padding=(5, 5)), False),  # more around it than the window reaches
    ],
)
def test_where_it_pays(window, pays):
    assert window.pays == pays
