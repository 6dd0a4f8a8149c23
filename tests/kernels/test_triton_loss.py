"""The fused loss against PyTorch; in Triton's interpreter where there is no GPU."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag import Hierarchy
from logicdiag.methods import loss as losses
from logicdiag.methods.config import LossConfig
from logicdiag.pseudo.target import Target

kernels = pytest.importorskip("logicdiag.kernels.triton_loss", reason="needs Triton", exc_type=ImportError)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAMES = st.sampled_from(["voc2012", "cityscapes", "coco"])


def views(h: Hierarchy, channels: int, seed: int, size: tuple[int, int] = (9, 17)) -> tuple[torch.Tensor, Target]:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, channels, *size, generator=g) * 5
    logits[0, :, 0, 0] = 60.0
    logits[0, :, 0, 1] = -60.0
    leaf = torch.randint(len(h.leaves), (2, *size), generator=g)
    weight = torch.rand(2, *size, generator=g)
    weight[weight < 0.3] = 0
    return logits.to(DEVICE), Target(weight.to(DEVICE), leaf.to(DEVICE))


def both_ways(
    loss: losses.Loss, logits: torch.Tensor, target: Target, monkeypatch
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for fused in (False, True):
        monkeypatch.setattr(losses, "fuses", lambda device, fused=fused: fused)
        leaves = logits.detach().clone().requires_grad_()
        value = loss(leaves, target, {})
        (3 * value).backward()
        found.append((value.detach(), leaves.grad))
    return found


@settings(max_examples=12, deadline=None)
@given(NAMES, st.integers(0, 10**6), st.sampled_from(["sum", "mean"]), st.sampled_from([0.0, 0.7]), st.booleans())
def test_value_and_gradient_are_those_of_pytorch(name, seed, nodes, leaf, flat):
    h = Hierarchy.load(name)
    head = "flat" if flat else "hierarchical"
    loss = losses.Loss(LossConfig(nodes=nodes, leaf=leaf), h, head)
    logits, target = views(h, len(h.leaves) if flat else len(h), seed)
    with pytest.MonkeyPatch.context() as patch:
        (wanted, gradient), (found, of_kernel) = both_ways(loss, logits, target, patch)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(of_kernel, gradient, rtol=1e-4, atol=1e-5)


def test_half_precision_and_small_integers(monkeypatch):
    h = Hierarchy.load("voc2012")
    logits, target = views(h, len(h), 0)
    small = Target(target.weight, target.leaf.to(torch.uint8))
    loss = losses.Loss(LossConfig(), h, "hierarchical")
    (wanted, gradient), (found, of_kernel) = both_ways(loss, logits.bfloat16(), small, monkeypatch)
    assert of_kernel.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(of_kernel, gradient, rtol=1e-2, atol=1e-3)


def test_pixels_without_a_leaf_count_nowhere():
    h = Hierarchy.load("voc2012")
    logits, target = views(h, len(h), 1)
    leaf = torch.where(target.weight > 0.6, -1, target.leaf)
    table = kernels.Intervals.of(h.parents, DEVICE)
    flat = logits.flatten(2).requires_grad_()
    found = kernels.leaf_loss(table, flat, leaf.flatten(1), None, 1.0, 0.5)
    found.backward()
    paths = losses.path_table(h).to(DEVICE)
    counts, safe = leaf >= 0, leaf.clamp(min=0)
    leaves = logits[:, list(h.leaf_indices)]
    wanted = losses.path_bce(logits, safe, paths) + 0.5 * F.cross_entropy(leaves, safe, reduction="none")
    torch.testing.assert_close(found, (wanted * counts).sum(), rtol=1e-5, atol=1e-4)
    assert (flat.grad.view_as(logits).abs().sum(1)[~counts] == 0).all()
    assert (flat.grad.view_as(logits).abs().sum(1)[counts] > 0).all()


def test_more_nodes_than_one_product_holds():
    """Logarithms are taken of products of 64 factors."""
    h = Hierarchy.from_dict({f"g{i}": [f"x{i}_{j}" for j in range(9)] for i in range(15)})
    logits, target = views(h, len(h), 2, (3, 5))
    table = kernels.Intervals.of(h.parents, DEVICE)
    found = kernels.leaf_loss(table, torch.zeros_like(logits).flatten(2), target.leaf.flatten(1), None, 1.0, 0.0)
    torch.testing.assert_close(found.item(), len(h) * 30 * math.log(2), rtol=1e-5, atol=0)


def test_channels_last(monkeypatch):
    h = Hierarchy.load("cityscapes")
    logits, target = views(h, len(h), 3)
    loss = losses.Loss(LossConfig(), h, "hierarchical")
    last = logits.to(memory_format=torch.channels_last)
    (wanted, gradient), (found, of_kernel) = both_ways(loss, last, target, monkeypatch)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(of_kernel, gradient, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_the_right_layout_reaches_the_network(monkeypatch):
    """Through a resize and a convolution in channels-last memory, as in training."""
    h = Hierarchy.load("voc2012")
    _, target = views(h, len(h), 4, (8, 8))
    loss = losses.Loss(LossConfig(), h, "hierarchical")
    features = torch.randn(2, 5, 4, 4, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    gradients = []
    for fused in (False, True):
        monkeypatch.setattr(losses, "fuses", lambda device, fused=fused: fused)
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(5, len(h), 1).to(DEVICE).to(memory_format=torch.channels_last)
        logits = F.interpolate(conv(features), (8, 8), mode="bilinear", align_corners=True)
        loss(logits, target, {}).backward()
        gradients.append(conv.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["voc2012", "coco"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_pixel_by_itself(name, dtype):
    h = Hierarchy.load(name)
    logits, target = views(h, len(h), 2, (9, 31))
    logits = logits.to(dtype).flatten(2)
    found = kernels.path_bce(kernels.Intervals.of(h.parents, DEVICE), logits, target.leaf.flatten(1))
    wanted = losses.path_bce(logits.float(), target.leaf.flatten(1), losses.path_table(h).to(DEVICE))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(NAMES, st.integers(0, 10**6), st.sampled_from(["sum", "mean"]), st.sampled_from([0.0, 0.7]))
def test_levels_that_are_not_sure(name, seed, nodes, leaf):
    """Any concept on the path to the leaf, also the leaf itself."""
    h = Hierarchy.load(name)
    logits, target = views(h, len(h), seed)
    paths = [h.path_indices(i) for i in h.leaf_indices]
    g = torch.Generator().manual_seed(seed)
    depth = torch.randint(4, target.leaf.shape, generator=g).flatten().tolist()
    sure = [paths[k][min(d, len(paths[k]) - 1)] for k, d in zip(target.leaf.flatten().tolist(), depth, strict=True)]
    chosen = torch.tensor(sure, dtype=torch.int16, device=DEVICE).view_as(target.leaf)
    target = Target(target.weight, target.leaf, None, chosen)
    loss = losses.Loss(LossConfig(nodes=nodes, leaf=leaf), h, "hierarchical")
    with pytest.MonkeyPatch.context() as patch:
        (wanted, gradient), (found, of_kernel) = both_ways(loss, logits, target, patch)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(of_kernel, gradient, rtol=1e-4, atol=1e-5)
