"""How likely concepts are among their siblings: the kernel against PyTorch; in Triton's interpreter without a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag import Hierarchy
from logicdiag.logic import leaves as deciding
from logicdiag.logic.leaves import Leaves
from logicdiag.methods import loss as losses
from logicdiag.methods.config import LossConfig
from logicdiag.methods.loss import Loss
from logicdiag.pseudo.target import Target
from tests.kernels.test_triton_levels import DEVICE, TREES

kernels = pytest.importorskip("logicdiag.kernels.triton_shares", reason="needs Triton", exc_type=ImportError)


def pixels(h: Hierarchy, seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(2, len(h), 9, 17, generator=g)).to(dtype)
    logits[0, :, 0, 0], logits[0, :, 0, 1], logits[1, 0, 0, 0] = 60.0, -60.0, 200.0
    return logits, torch.randint(len(h.leaves), (2, 9, 17), generator=g)


def fuse(monkeypatch, yes: bool) -> None:
    for module in (deciding, losses):
        monkeypatch.setattr(module, "fuses", lambda device: yes)


def sure_of(h: Hierarchy, leaf: torch.Tensor, seed: int) -> torch.Tensor:
    """A concept of each leaf's path, by chance."""
    place = torch.randint(9, leaf.shape, generator=torch.Generator().manual_seed(seed))
    paths = [h.path_indices(channel) for channel in h.leaf_indices]
    each = [paths[one][int(at) % len(paths[one])] for one, at in zip(leaf.flatten(), place.flatten(), strict=True)]
    return torch.tensor(each, dtype=torch.int16).view_as(leaf)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(TREES), st.integers(0, 10**6), st.sampled_from([torch.float32, torch.bfloat16]))
def test_value_and_gradient_are_those_of_pytorch(h, seed, dtype):
    logits, leaf = pixels(h, seed, dtype)
    weight = torch.randn(2, Leaves(h).paths.shape[1], 9, 17, generator=torch.Generator().manual_seed(seed))
    plain, fused = (logits.clone().to(place).requires_grad_() for place in ("cpu", DEVICE))
    wanted = Leaves(h, "tree").shares(plain, leaf)
    (wanted * weight).sum().backward()
    table = kernels.Siblings.of(h.parents, DEVICE)
    found = kernels.shares(table, fused.flatten(2), leaf.to(DEVICE, torch.uint8).flatten(1)).view_as(wanted)
    (found * weight.to(DEVICE)).sum().backward()
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-4)
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(fused.grad.cpu(), plain.grad, **close)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(TREES), st.integers(0, 10**6), st.sampled_from([0.05, 0.6, 0.95]))
def test_the_deepest_concept_is_that_of_the_probabilities(h, seed, least):
    """Of the kernel, and of what both stand for."""
    logits, leaf = pixels(h, seed)
    leaves = Leaves(h, "tree")
    probs = leaves.probs(logits)
    wanted, whether = leaves.deepest(probs, leaf, least)
    clear = ((probs - least).abs() > 1e-4).all(1)  # elsewhere rounding decides
    assert clear.float().mean() > 0.9
    for fused in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            fuse(patch, fused)
            moved = Leaves(h, "tree").to(DEVICE)
            sure, some = (found.cpu() for found in moved.deepest_by_tree(logits.to(DEVICE), leaf.to(DEVICE), least))
        assert torch.equal(sure[clear], wanted[clear])
        assert torch.equal(some[clear], whether[clear])


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(TREES), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_the_loss_is_that_of_pytorch(h, seed, by_level, channels_last):
    logits, leaf = pixels(h, seed)
    if channels_last:
        logits = logits.to(memory_format=torch.channels_last)
    weight = torch.rand(2, 9, 17, generator=torch.Generator().manual_seed(seed)).round(decimals=1)
    target = Target(weight, leaf, None, sure_of(h, leaf, seed) if by_level else None)
    target = target._each(lambda tensor: tensor.to(DEVICE))
    found = []
    for fused in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            fuse(patch, fused)
            inputs = logits.to(DEVICE).clone().requires_grad_()
            value = Loss(LossConfig(leaf=0.7), h, "hierarchical", decision="tree")(inputs, target, {})
            (3 * value).backward()
            found.append((value.detach(), inputs.grad))
    (wanted, gradient), (value, of_kernel) = found
    torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(of_kernel, gradient, rtol=1e-4, atol=1e-4)
    assert not of_kernel[(target.weight == 0)[:, None].expand_as(of_kernel)].any()


def test_pixels_without_a_leaf_share_nothing():
    h = TREES[0]
    logits, leaf = pixels(h, 3)
    leaf = torch.where(leaf > 1, -1, leaf).to(DEVICE)
    flat = logits.to(DEVICE).flatten(2).requires_grad_()
    found = kernels.shares(kernels.Siblings.of(h.parents, DEVICE), flat, leaf.flatten(1))
    found.sum().backward()
    nothing = leaf.flatten(1)[:, None] < 0
    assert not found[nothing.expand_as(found)].any()
    assert not flat.grad[nothing.expand_as(flat)].any()
    assert flat.grad[~nothing.expand_as(flat)].any()


def test_a_path_that_has_ended_takes_nothing_off():
    """sky is its own topmost concept; cat stands under animal."""
    h = TREES[0]
    logits, _ = pixels(h, 4)
    leaf = torch.full((2, 9, 17), h.leaves.index("sky"))
    shares = Leaves(h, "tree").shares(logits, leaf)
    assert shares[:, 0].lt(0).any()
    assert not shares[:, 1:].any()
