"""A GPU that computes wrong gradients is found out before a run learns from them."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from logicdiag.engine import arithmetic
from logicdiag.engine.arithmetic import WRONG, check_arithmetic, gradient_error
from logicdiag.errors import ConfigError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.005), (torch.float16, 0.001)])
def test_rounding_is_no_error(dtype, most):
    assert 0 <= gradient_error(CPU, dtype) < most < WRONG


def test_it_draws_nothing():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    gradient_error(CPU, torch.float32)
    assert torch.equal(before, torch.random.get_rng_state())


class _Wrong(torch.autograd.Function):
    """A convolution one of whose weights gets the gradient of another."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, _ = ctx.saved_tensors
        right = torch.einsum("nohw,nihw->oi", gradient, x)[..., None, None]
        return None, right.roll(1, 0)


def test_what_is_wrong_is_seen(monkeypatch):
    monkeypatch.setattr(arithmetic, "F", SimpleNamespace(conv2d=_Wrong.apply))
    assert gradient_error(CPU, torch.float32) > 1


@pytest.mark.parametrize("error", [0.33, 3e34, float("nan"), float("inf")])
def test_a_gpu_that_is_wrong_is_refused(monkeypatch, error):
    monkeypatch.setattr(arithmetic, "gradient_error", lambda device, dtype: error)
    part = SimpleNamespace(name="NVIDIA H200", multi_processor_count=26)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: part)
    with pytest.raises(ConfigError, match=r"train\.device is cuda:0.*26 multiprocessors.*unset CUDA_MPS"):
        check_arithmetic(GPU, "bf16")
    check_arithmetic(CPU, "bf16")


def test_it_is_asked_in_the_precision_of_the_run(monkeypatch):
    asked = []
    monkeypatch.setattr(arithmetic, "gradient_error", lambda device, dtype: asked.append(dtype) or 0.0)
    for precision in ("fp32", "bf16", "fp16"):
        check_arithmetic(GPU, precision)
    assert asked == [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_whole_gpu_is_right(precision):
    check_arithmetic(GPU, precision)
