"""Resizing by matrices against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from logicdiag.models.resize import by_matrices, matrix, resize

SIZES = [
    ((4, 4), (13, 13)),  # k * stride + 1
    ((16, 16), (64, 64)),
    ((5, 7), (33, 50)),
    ((9, 8), (3, 5)),  # smaller
    ((1, 1), (6, 4)),
    ((1, 5), (1, 9)),
    ((6, 3), (1, 1)),
    ((7, 7), (7, 7)),
]


def torch_s_own(x, size):
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("inside", "outside"), SIZES)
def test_values_gradients_and_memory_order(inside, outside, order):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *inside, generator=g).contiguous(memory_format=order)
    weight = torch.randn(2, 3, *outside, generator=g)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = by_matrices(mine, outside), torch_s_own(theirs, outside)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if inside != (1, 1):  # which is in any order
        assert found.is_contiguous(memory_format=order)
    for out in (found, expected):
        (out * weight).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5)


def test_slices_are_taken_as_they_are():
    x = torch.randn(2, 6, 5, 7)[:, ::2, :, 1:]
    torch.testing.assert_close(by_matrices(x, (9, 11)), torch_s_own(x, (9, 11)), rtol=1e-5, atol=1e-5)


def test_at_stride_4_half_precision_weights_are_exact():
    exact = matrix(129, 513, torch.device("cpu"), torch.float64)
    assert torch.equal(matrix(129, 513, torch.device("cpu"), torch.bfloat16).double(), exact)
    assert torch.equal(exact.sum(1), torch.ones(513, dtype=torch.float64))


def test_half_precision_is_as_near_as_torch_s_own():
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    exact, half = torch_s_own(x, (64, 64)), by_matrices(x.bfloat16(), (64, 64))
    assert half.dtype == torch.bfloat16
    assert float((half.float() - exact).abs().max()) < 0.03


def test_on_a_cpu_it_is_torch_s_own():
    x = torch.randn(2, 3, 5, 7)
    assert torch.equal(resize(x, (9, 11)), torch_s_own(x, (9, 11)))


def test_it_can_be_compiled_whole():
    compiled = torch.compile(by_matrices, backend="aot_eager", dynamic=False, fullgraph=True)
    x = torch.randn(1, 2, 4, 5, requires_grad=True)
    found = compiled(x, (7, 11))
    torch.testing.assert_close(found, torch_s_own(x, (7, 11)), rtol=1e-5, atol=1e-5)
    found.sum().backward()
    assert x.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_gradients_are_the_same_each_time():
    x = torch.randn(2, 8, 65, 65, device="cuda")
    found = []
    for _ in range(3):
        leaf = x.clone().requires_grad_()
        resize(leaf, (257, 257)).square().sum().backward()
        found.append(leaf.grad)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    with torch.no_grad():
        torch.testing.assert_close(resize(x, (257, 257)), by_matrices(x, (257, 257)), rtol=1e-4, atol=1e-4)
