"""The kernels for batch norm, against PyTorch in float64; in Triton's interpreter where there is no GPU."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.gpu import no_waiting

kernels = pytest.importorskip("logicdiag.kernels.triton_norm", reason="needs Triton", exc_type=ImportError)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ACTS = {"none": lambda x: x, "relu": F.relu, "relu6": F.relu6}
MOMENTUM, EPS = 0.1, 1e-5


@pytest.fixture(autouse=True, scope="module")
def small_programs():
    """Many shares and rounds of a loop also of few pixels; on a GPU they are as they are in training."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE.type != "cuda":
            for name, value in {"SUM_TILE": 64, "AHEAD": 2, "SUM_PROGRAMS": 12, "TILE": 256, "PROGRAMS": 6}.items():
                patch.setattr(kernels, name, value)
        yield


class Case(NamedTuple):
    x: Tensor
    weight: Tensor
    bias: Tensor
    grad: Tensor
    mean: Tensor
    var: Tensor

    def double(self) -> "Case":
        return Case(*(tensor.double() for tensor in self))


def drawn(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
) -> Case:
    g = torch.Generator().manual_seed(seed)
    c = shape[1]
    x, grad = (torch.randn(shape, generator=g) for _ in range(2))
    x = (x * std + mean).to(DEVICE, dtype, memory_format=torch.channels_last)
    weight, bias, running, var = (torch.randn(c, generator=g).to(DEVICE) for _ in range(4))
    return Case(x, weight * 3, bias, grad.to(DEVICE, dtype), running, var.abs() + 0.1)


def by_torch(case: Case, act: str) -> dict[str, Tensor]:
    x, weight, bias = (tensor.detach().clone().requires_grad_() for tensor in case[:3])
    mean, var = case.mean.clone(), case.var.clone()
    out = ACTS[act](F.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS))
    of_x, of_weight, of_bias = torch.autograd.grad(out, (x, weight, bias), case.grad)
    return {"out": out.detach(), "x": of_x, "weight": of_weight, "bias": of_bias, "mean": mean, "var": var}


def by_kernels(case: Case, act: str) -> dict[str, Tensor]:
    x, weight, bias = (tensor.detach().requires_grad_() for tensor in case[:3])
    mean, var = case.mean.clone(), case.var.clone()
    batches = torch.full((), 41, device=DEVICE)
    out = kernels.batch_norm(x, weight, bias, (mean, var, batches), MOMENTUM, EPS, act)
    of_x, of_weight, of_bias = torch.autograd.grad(out, (x, weight, bias), case.grad)
    return {
        "out": out.detach(),
        "x": of_x,
        "weight": of_weight,
        "bias": of_bias,
        "mean": mean,
        "var": var,
        "batches": batches,
    }


def assert_same(case: Case, act: str) -> None:
    """As near as float32 allows: means are rounded where values are, and gradients are differences of larger ones."""
    theirs, ours = by_torch(case.double(), act), by_kernels(case, act)
    assert ours.pop("batches") == 42
    inverse = (case.x.double().var((0, 2, 3), correction=0) + EPS).rsqrt()
    steep = (case.weight.abs() * inverse).max().item()
    tolerance = 1e-5 + 4e-7 * (case.x.double().abs().amax((0, 2, 3)) * inverse).max().item()
    summed = case.grad.double().abs().sum((0, 2, 3)).max().item()  # what may cancel in a sum
    sizes = {"x": steep * case.grad.abs().max().item(), "weight": summed, "bias": summed}
    for name, expected in theirs.items():
        found = ours[name]
        assert found.dtype == (case.x.dtype if name in ("out", "x") else torch.float32)
        size = sizes.get(name, expected.abs().max().item() + 1e-3)
        rtol = 2 * torch.finfo(found.dtype).eps
        torch.testing.assert_close(
            found.double(), expected, atol=tolerance * size, rtol=rtol, msg=lambda text, name=name: f"{name}: {text}"
        )
    for name in ("out", "x"):
        assert ours[name].stride() == case.x.stride()


def away_from_edges(case: Case, act: str, by: float = 1e-3) -> Case:
    """Without a gradient where the activation has a corner: rounding decides there which side is taken."""
    case64 = case.double()
    y = F.batch_norm(case64.x, None, None, case64.weight, case64.bias, True, MOMENTUM, EPS)
    near = (y.abs() < by) | ((y - 6).abs() < by) if act != "none" else torch.zeros_like(y, dtype=torch.bool)
    return case._replace(grad=case.grad.masked_fill(near, 0.0))


@settings(max_examples=20, deadline=None)
@given(
    b=st.integers(1, 3),
    c=st.sampled_from([1, 2, 7, 16, 24, 33, 72]),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    act=st.sampled_from(sorted(ACTS)),
    mean=st.sampled_from([0.0, -3.0, 40.0]),
    seed=st.integers(0, 1000),
)
def test_any_size(b, c, size, act, mean, seed):
    b = max(b, 2 if size == (1, 1) else 1)  # one value has no variance
    case = drawn((b, c, *size), seed=seed, mean=mean)
    assert_same(away_from_edges(case, act), act)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("act", sorted(ACTS))
@pytest.mark.parametrize("shape", [(2, 40, 6, 5), (4, 96, 1, 1), (1, 5, 1, 30), (3, 1, 4, 4)])
def test_what_encoders_and_decoders_have(shape, act, dtype):
    assert_same(away_from_edges(drawn(shape, dtype), act), act)


def test_features_far_from_zero_keep_their_variance():
    """Squares of 1000 +- 0.1 differ from the square of the mean by 1e-8 of it, less than float32 can tell."""
    case = drawn((2, 20, 16, 9), mean=1000.0, std=0.1)
    found, expected = by_kernels(case, "none"), by_torch(case.double(), "none")
    for name in ("out", "x", "weight", "var"):
        size = expected[name].abs().max().item()
        torch.testing.assert_close(found[name].double(), expected[name], atol=3e-3 * size, rtol=1e-3)


def test_a_first_pixel_far_from_all_others():
    case = drawn((2, 20, 16, 9), std=0.1)
    case.x[0, :, 0, 0] = 1000.0
    assert_same(case, "none")


def test_constant_channels():
    case = drawn((2, 8, 5, 5), std=0.0, mean=0.3)
    found = by_kernels(case, "relu")
    torch.testing.assert_close(found["out"], case.bias.relu().view(1, -1, 1, 1).expand_as(found["out"]))
    torch.testing.assert_close(found["var"], 0.9 * case.var)


@pytest.mark.parametrize("act", ["relu", "relu6"])
def test_the_corners_of_activations_are_torch_s(act):
    """Their gradient is 0 at both ends; a weight of 0 brings all values to the bias exactly."""
    case = drawn((2, 6, 4, 4))
    case = case._replace(weight=torch.zeros_like(case.weight), bias=torch.tensor([-1.0, 0, 1, 5, 6, 7], device=DEVICE))
    theirs, ours = by_torch(case, act), by_kernels(case, act)
    assert torch.equal(ours["out"], theirs["out"])
    torch.testing.assert_close(ours["bias"], theirs["bias"])
    torch.testing.assert_close(ours["weight"], theirs["weight"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("act", sorted(ACTS))
def test_what_is_not_a_number_stays_so(act):
    case = drawn((2, 6, 4, 4))
    case.x[1, 2, 3, 3] = float("nan")
    found = by_kernels(case, act)
    assert torch.equal(found["out"].isnan().any(0).any(-1).any(-1).cpu(), torch.arange(6) == 2)
    assert found["mean"].isnan()[2]


@pytest.mark.parametrize("act", sorted(ACTS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 40, 9, 7), (1, 7, 1, 1)])
def test_by_running_statistics(shape, act, dtype):
    case = drawn(shape, dtype)
    found = kernels.normalise(*case[:3], case.mean, case.var, EPS, act)
    x, weight, bias, _, mean, var = case.double()
    expected = ACTS[act](F.batch_norm(x, mean, var, weight, bias, False, 0.0, EPS))
    assert found.dtype == dtype
    assert found.stride() == case.x.stride()
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)


def test_a_gradient_that_is_one_for_all_images():
    case = drawn((2, 24, 5, 6))
    assert_same(case._replace(grad=case.grad[:1].expand(case.x.shape)), "none")


def test_the_same_each_time():
    """Sums of many programs, in float32, where another order would show."""
    case = drawn((2, 40, 9, 8))
    first, second = (by_kernels(case, "relu6") for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("shape", [(4, 96, 112, 112), (16, 672, 14, 14), (16, 16, 112, 112)])
def test_captured(shape):
    """Without a word from the host, and as large as in training."""
    case = away_from_edges(drawn(shape, torch.bfloat16), "relu6")
    expected = by_kernels(case, "relu6")
    graph = torch.cuda.CUDAGraph()
    with no_waiting():
        by_kernels(case, "relu6")
    with torch.cuda.graph(graph):
        ours = by_kernels(case, "relu6")
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(ours[name], expected[name]) for name in ours)
    assert_same(case, "relu6")
