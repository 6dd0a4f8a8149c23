"""Psi in fused kernels is psi; in Triton's interpreter where there is no GPU."""

import pytest
import torch

from logicdiag import Diagnoser, Hierarchy, KnowledgeBase
from logicdiag.kernels import fused
from logicdiag.pseudo.diagnosis import Diagnosis
from logicdiag.pseudo.target import Prediction

pytest.importorskip("triton", reason="needs Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
H = Hierarchy.load("cityscapes")
SHAPE = (2, len(H), 6, 7)


def prediction(seed: int, seeds: tuple[int, ...] = (5, 6)) -> Prediction:
    g = torch.Generator().manual_seed(seed)
    logits, valid = torch.randn(SHAPE, generator=g) * 3, torch.rand(SHAPE[0], *SHAPE[2:], generator=g) > 0.2
    return Prediction(logits.to(DEVICE), valid.to(DEVICE), {"seeds": torch.tensor(seeds, device=DEVICE)})


def both_ways(monkeypatch, strategy, weight, reduce=None):
    found = []
    for fuses in (False, True):
        monkeypatch.setattr(fused, "fuses", lambda device, fuses=fuses: fuses)
        psi = Diagnosis(Diagnoser(KnowledgeBase(H), strategy), weight, reduce=reduce)
        assert (psi._fast(DEVICE) is not None) == fuses
        found.append(psi(prediction(0), prediction(1)))
    return found


@pytest.mark.parametrize("weight", ["one", "posterior", "likelihood"])
def test_the_likeliest_labels(monkeypatch, weight):
    (plain, counts), (found, same) = both_ways(monkeypatch, "greedy", weight)
    valid = prediction(0).valid
    assert torch.equal(found.leaf[valid].long(), plain.leaf[valid])
    torch.testing.assert_close(found.weight, plain.weight, atol=1e-4, rtol=0)
    assert (found.weight[~valid] == 0).all()
    for name, (part, whole) in counts.items():
        torch.testing.assert_close(same[name][0].double(), part.double(), atol=1e-2, rtol=0)
        assert same[name][1] == whole


@pytest.mark.parametrize("strategy", ["uniform", "predictive", "sampling"])
def test_drawn_labels_satisfy_the_rules_and_weigh_their_probability(monkeypatch, strategy):
    (plain, counts), (found, same) = both_ways(monkeypatch, strategy, "posterior")
    assert int(same["conflict"][0]) == int(counts["conflict"][0])
    assert ((found.leaf.long() >= 0) & (found.leaf.long() < len(H.leaves))).all()
    consistent = (plain.weight == 1) & prediction(0).valid
    assert torch.equal(found.leaf[consistent].long(), plain.leaf[consistent])
    assert ((found.weight >= 0) & (found.weight <= 1)).all()


def test_degrees_are_of_all_processes(monkeypatch):
    """What another process adds changes the likelihood."""
    kept = []

    def reduce(tensor):
        kept.append(tensor.clone())
        tensor.mul_(2)  # two processes that saw the same

    (alone, _), (fused_alone, _) = both_ways(monkeypatch, "greedy", "posterior")
    (doubled, _), (fused_doubled, _) = both_ways(monkeypatch, "greedy", "posterior", reduce)
    torch.testing.assert_close(fused_doubled.weight, fused_alone.weight)
    torch.testing.assert_close(doubled.weight, alone.weight)
    assert len(kept) > 2
    assert float(kept[-1]) == int(prediction(0).valid.sum() + prediction(1).valid.sum())


def test_a_view_is_drawn_alike_whatever_else_is_in_the_batch(monkeypatch):
    monkeypatch.setattr(fused, "fuses", lambda device: True)
    psi = Diagnosis(Diagnoser(KnowledgeBase(H), "predictive"), "posterior")
    whole = prediction(0)
    target, _ = psi(whole, whole)
    alone, _ = psi(Prediction(whole.logits[1:], whole.valid[1:], {"seeds": whole.plan["seeds"][1:]}), whole)
    assert torch.equal(target.leaf[1:], alone.leaf)
    assert torch.equal(target.weight[1:], alone.weight)
