"""Draws that are a pixel's own."""

import math

import pytest
import torch

import logicdiag as ld
from logicdiag.errors import TangledRulesWarning
from logicdiag.kernels.taken import GOLDEN, Keyed, _mixed
from logicdiag.logic.compile import compile_knowledge

H = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": ["car", "bus"], "sky": None})


def test_it_is_splitmix64():
    """Its first numbers from the state 0, which its authors' and every other implementation give."""
    state = GOLDEN * torch.arange(1, 4)
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [number % (1 << 64) for number in _mixed(state).tolist()] == published


def test_numbers_are_uniform_and_know_nothing_of_each_other():
    drawn = Keyed.of_views(torch.arange(4), (100, 100)).numbers(6).double()
    count = drawn.shape[1]
    assert drawn.shape == (6, 40_000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for numbers in drawn:
        bins = torch.bincount((numbers * 50).long(), minlength=50).double()
        chi_square = ((bins - count / 50) ** 2 / (count / 50)).sum()
        assert abs(chi_square - 49) < 6 * math.sqrt(2 * 49)
    centred = drawn - 0.5
    beside = torch.cat([centred, centred.roll(1, 1), centred.roll(100, 1)])  # other draws, and neighbours
    likeness = 12 * beside @ beside.T / count
    assert (likeness - torch.diag(torch.diag(likeness))).abs().max() < 6 / math.sqrt(count)


def test_streams_differ():
    keyed = Keyed.of_views(torch.arange(2), (8, 8))
    assert torch.equal(keyed.stream(0).numbers(2), keyed.numbers(2))
    assert not torch.isclose(keyed.stream(1).numbers(2), keyed.numbers(2)).all(1).any()


@pytest.mark.parametrize("families", ["CDE", "C", "DE", "E"])
def test_diagnoses_are_drawn_as_likely_as_they_are(families):
    d = ld.Diagnoser(ld.KnowledgeBase(H, families=families), strategy="sampling")
    pixel = dict(zip(H.names, (0.3, 0.9, 0.6, 0.7, 0.6, 0.2, 0.55), strict=True))
    probs = torch.tensor([pixel[name] for name in H.names]).view(1, -1, 1, 1).expand(2, -1, 100, 100).contiguous()
    found = d(probs, generator=Keyed.of_views(torch.tensor([3, 4]), (100, 100)))
    flips = (found.observed ^ found.revised).movedim(1, -1).flatten(0, 2)
    expected = d.diagnoses(pixel, degrees=found.truth_degrees)
    assert len(expected) > 1
    for diagnosis in expected:
        mask = torch.tensor([name in diagnosis.flips for name in H.names])
        share, p = float((flips == mask).all(1).double().mean()), diagnosis.probability
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / len(flips)) + 1e-5


@pytest.mark.parametrize("tangled", [False, True])
@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_who_is_worked_on_together_does_not_matter(monkeypatch, size, tangled):
    kb = ld.KnowledgeBase(H, families="CE", rules=["forall x: sky(x) -> ~bird(x)"])
    d = ld.Diagnoser(kb, strategy="sampling")
    if tangled:
        with pytest.warns(TangledRulesWarning):
            d.program = compile_knowledge(kb, work=0)
    probs = torch.rand(3, len(H), 6, 7, generator=torch.Generator().manual_seed(0))
    degrees = d.truth_degrees(probs)
    seeds = torch.tensor([5, 6, 7])
    whole = d(probs, generator=Keyed.of_views(seeds, (6, 7)), degrees=degrees)
    monkeypatch.setattr(d, "_pixels_at_once", lambda probs, floats: size)
    for views in (slice(0, 3), slice(1, 3), slice(2, 3)):
        part = d(probs[views], generator=Keyed.of_views(seeds[views], (6, 7)), degrees=degrees)
        assert torch.equal(part.revised, whole.revised[views])
        torch.testing.assert_close(part.log_prob, whole.log_prob[views])


def test_keys_elsewhere_are_refused():
    keys = torch.zeros(1, 2, 2, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match="the generator is on meta, the probabilities are on cpu"):
        ld.Diagnoser(ld.KnowledgeBase(H))(torch.rand(1, len(H), 2, 2), generator=Keyed(keys))
