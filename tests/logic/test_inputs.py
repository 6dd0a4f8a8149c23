"""Every layout and dtype gives the same answer; what is no probability is refused with its place."""

import pytest
import torch

import logicdiag as ld
from logicdiag.logic.blocks import blocks

H = ld.Hierarchy.load("voc2012")
KB = ld.KnowledgeBase(H)


@pytest.fixture(params=["CDE", "CE"])
def diagnoser(request):
    return ld.Diagnoser(ld.KnowledgeBase(H, request.param), strategy="soft")


def image(dtype=torch.float32, seed=0):
    return torch.rand(2, 24, 11, 13, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_same(one, other, move):
    for name in ("observed", "revised", "expected"):
        assert torch.allclose(getattr(one, name).double(), move(getattr(other, name)).double(), atol=1e-6), name
    for name in ("conflict", "leaf", "log_prob"):
        assert torch.allclose(
            getattr(one, name).flatten().double(), getattr(other, name).cpu().flatten().double(), atol=1e-5
        ), name


def test_pixels_as_rows_and_as_an_image(diagnoser):
    probs = image()
    rows = probs.movedim(1, -1).reshape(-1, 24)
    assert_same(diagnoser(probs), diagnoser(rows), lambda t: t.reshape(2, 11, 13, 24).movedim(-1, 1))


@pytest.mark.parametrize(
    "layout",
    [
        lambda p: p.to(memory_format=torch.channels_last),
        lambda p: p.transpose(2, 3).contiguous().transpose(2, 3),
        lambda p: torch.stack([p, p], -1)[..., 0],
        lambda p: p.movedim(0, -1).contiguous().movedim(-1, 0),
    ],
    ids=["channels_last", "transposed", "strided", "batch_last"],
)
def test_memory_layouts(diagnoser, layout):
    probs = image()
    assert not layout(probs).is_contiguous()
    assert_same(diagnoser(probs), diagnoser(layout(probs)), lambda t: t)


@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -3])
def test_any_dimension_of_concepts(diagnoser, dim):
    probs = image()
    moved = probs.movedim(1, dim).contiguous()
    result = diagnoser(moved, dim=dim)
    assert result.revised.shape == moved.shape
    assert_same(diagnoser(probs), result, lambda t: t.movedim(dim, 1))


def test_one_image_without_a_batch(diagnoser):
    probs = image()[0]
    result = diagnoser(probs, dim=0)
    assert result.leaf.shape == (11, 13)
    assert_same(diagnoser(probs[None]), result, lambda t: t[None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(diagnoser, dtype):
    probs = image(dtype)
    result, exact = diagnoser(probs), diagnoser(probs.double())
    assert torch.equal(result.observed, probs > 0.5)
    assert result.log_prob.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(result.expected.double(), exact.expected, atol=1e-4)
    assert diagnoser.kb.is_consistent(result.revised.movedim(1, -1)).all()


@pytest.mark.parametrize("shape", [(0, 24), (0, 24, 4, 5), (2, 24, 0, 5), (1, 24, 1, 1), (1, 24)])
def test_empty_and_tiny(diagnoser, shape):
    result = diagnoser(torch.rand(shape))
    assert result.revised.shape == shape
    assert result.leaf.shape == shape[:1] + shape[2:]
    assert len(result.truth_degrees) == len(diagnoser.kb.families)


def test_many_blocks_equal_one(diagnoser, monkeypatch):
    probs = image()
    whole = diagnoser(probs)
    monkeypatch.setattr(ld.Diagnoser, "_pixels_at_once", lambda self, probs, floats: 17)
    assert_same(whole, diagnoser(probs), lambda t: t)


def test_blocks_cover_every_pixel_once():
    for tensor in (image().movedim(1, 0), torch.rand(24, 7), torch.rand(5, 6, 24).movedim(-1, 0).transpose(1, 2)):
        seen = torch.zeros(tensor.shape[1:], dtype=torch.int64)
        for block in blocks((tensor,), 5):
            assert block.rows(tensor).shape[1] <= 5
            block.pixels(seen).add_(1)
        assert (seen == 1).all()


def test_gradients_are_left_alone(diagnoser):
    probs = image().requires_grad_()
    result = diagnoser(probs)
    assert not result.log_prob.requires_grad
    assert not result.expected.requires_grad


@pytest.mark.parametrize(
    ("value", "text"), [(float("nan"), "nan"), (float("inf"), "inf"), (-0.25, "-0.25"), (1.5, "1.5")]
)
def test_what_is_no_probability_is_refused(diagnoser, value, text):
    probs = image()
    probs[1, 4, 3, 2] = value
    probs[1, 6, 3, 2] = value
    message = rf"2 values are not in \[0, 1\]; the first is {text} at \[1, 4, 3, 2\], concept '{H.names[4]}'"
    for call in (diagnoser, diagnoser.truth_degrees):
        with pytest.raises(ld.ProbabilityError, match=message):
            call(probs)
    with pytest.raises(ld.ProbabilityError, match=r"1 value is not in \[0, 1\]; the first is .* at \[3\], concept"):
        diagnoser.diagnoses([value if i == 3 else 0.5 for i in range(24)])


def test_logits_are_recognised():
    with pytest.raises(ld.ProbabilityError, match="are these logits"):
        ld.Diagnoser(KB)(torch.randn(5, 24) * 4)


def test_shapes_are_checked(diagnoser):
    with pytest.raises(ld.ProbabilityError, match="have 23 channels in dimension 1, voc2012 has 24 concepts"):
        diagnoser(torch.rand(2, 23, 4, 4))
    with pytest.raises(ld.ProbabilityError, match="have 5 channels in dimension 1.*dimension 3 has 24: pass dim=3"):
        diagnoser(torch.rand(2, 5, 4, 24))
    with pytest.raises(ld.ProbabilityError, match="dim is 4, but the probabilities have shape"):
        diagnoser(torch.rand(2, 24, 4, 4), dim=4)
    with pytest.raises(ld.ProbabilityError, match="torch.int64, expected float16"):
        diagnoser(torch.zeros(2, 24, dtype=torch.int64))
    with pytest.raises(ld.ProbabilityError, match=r"valid has shape \(4, 3\), expected \(2, 4, 3\)"):
        diagnoser(torch.rand(2, 24, 4, 3), valid=torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(ld.ProbabilityError, match=r"valid is torch.float32, expected torch.bool"):
        diagnoser(torch.rand(2, 24), valid=torch.ones(2))
    with pytest.raises(ld.ProbabilityError, match="a list, expected a torch.Tensor"):
        diagnoser([[0.5] * 24])


def test_observations_are_checked(diagnoser):
    full = dict.fromkeys(H, 0.1)
    with pytest.raises(ld.ProbabilityError, match="'catt' is not in voc2012 .did you mean 'cat'"):
        diagnoser.diagnoses({**full, "catt": 0.3})
    del full["cat"]
    with pytest.raises(ld.ProbabilityError, match="no probability is given for 'cat'"):
        diagnoser.diagnoses(full)
    with pytest.raises(ld.ProbabilityError, match=r"has \(3,\) values, the hierarchy has 24 concepts"):
        diagnoser.diagnoses([0.1, 0.2, 0.3])


@pytest.mark.parametrize("shape", [(1, 24, 1, 1), (1, 24, 11, 1), (2, 24, 1, 1), (1, 24, 1, 13)])
def test_expanded_tensors(diagnoser, shape):
    probs = torch.rand(shape, generator=torch.Generator().manual_seed(5)).expand(2, 24, 11, 13)
    result = diagnoser(probs)
    assert torch.equal(result.observed, probs > 0.5)
    assert_same(diagnoser(probs.contiguous()), result, lambda t: t)


def test_autocast_changes_nothing():
    h = ld.Hierarchy.from_dict([f"n{i}" for i in range(600)])
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(h), strategy="greedy")
    probs = torch.eye(600) * 0.9
    plain = diagnoser(probs)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            result = diagnoser(probs)
        assert torch.equal(result.leaf, torch.arange(600))
        assert torch.equal(result.truth_degrees["E"], plain.truth_degrees["E"])


@pytest.mark.parametrize("budget", [0, -1, 2.5, True, "all"])
def test_budgets_are_checked(diagnoser, budget):
    for call in (diagnoser.diagnoses, diagnoser.explain):
        with pytest.raises(
            ld.OptionError, match="budget is .*, expected a whole number of at least 1, or None for all"
        ):
            call([0.3] * 24, budget=budget)


def test_certainty_is_clamped_alike_in_every_precision(diagnoser):
    probs = (image() > 0.5).double()
    exact = diagnoser(probs)
    assert torch.allclose(diagnoser(probs.float()).log_prob.double(), exact.log_prob, atol=1e-4)
    assert torch.allclose(diagnoser(probs.float()).expected.double(), exact.expected, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(diagnoser):
    probs = image()
    assert_same(diagnoser(probs), diagnoser(probs.cuda()), lambda t: t.cpu())
