"""Targets that are learned only as deep as the teacher is sure."""

import pytest
import torch

from logicdiag.logic.leaves import DECISIONS, Leaves
from logicdiag.pseudo.build import PsiSetting, build_knowledge, build_psi
from logicdiag.pseudo.config import PsiConfig
from logicdiag.pseudo.levels import SureLevels
from logicdiag.pseudo.threshold import Threshold

from .test_diagnosis import H, prediction


def made(decision="leaf", **options):
    config = PsiConfig(**{"weight": "one", "levels": 0.0, **options})
    return build_psi(PsiSetting(config, build_knowledge(config, H), "hierarchical", decision=decision))


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("name", ["diagnosis", "threshold"])
def test_levels_are_those_that_are_likely(name, decision):
    """By hand, pixel by pixel; what is learned of a pixel grows less with a greater limit."""
    unlabeled, labeled = prediction(0), prediction(1)
    probs = Leaves(H, decision).probs(unlabeled.logits)
    counted = []
    for least in (0.2, 0.5, 0.8):
        target, statistics = made(decision, name=name, levels=least)(unlabeled, labeled)
        for at in torch.ones_like(unlabeled.valid).nonzero().tolist():
            b, y, x = at
            path = list(H.path_indices(H.leaf_indices[int(target.leaf[b, y, x])]))
            sure = [node for node in path if probs[b, node, y, x] >= least]
            assert int(target.sure[b, y, x]) == (sure[-1] if sure else path[0])
            assert float(target.weight[b, y, x]) == float(bool(sure) and unlabeled.valid[b, y, x])
        part, whole = statistics["counted"]
        assert (float(part), int(whole)) == (float(target.weight.sum()), int(unlabeled.valid.sum()))
        counted.append(float(part))
    assert counted == sorted(counted, reverse=True)
    assert counted[0] > counted[-1]


def test_leaves_and_weights_are_those_of_psi():
    unlabeled, labeled = prediction(0), prediction(1)
    whole, _ = made(weight="posterior")(unlabeled, labeled)
    some, _ = made(weight="posterior", levels=0.4)(unlabeled, labeled)
    assert torch.equal(whole.leaf, some.leaf)
    assert torch.equal(some.weight, torch.where(some.weight > 0, whole.weight, 0.0))
    assert 0 < int((some.weight > 0).sum()) < int((whole.weight > 0).sum())


def test_levels_go_with_their_pixels():
    target, _ = made(levels=0.5)(prediction(0), prediction(1))
    boxes = torch.zeros(2, 5, 6, dtype=torch.bool)
    boxes[0, :3] = True
    mixed = target.mixed(boxes)
    assert torch.equal(mixed.sure[0, :3], target.sure[1, :3])
    assert torch.equal(mixed.sure[0, 3:], target.sure[0, 3:])
    assert torch.equal(target.cut(1, 2).sure, target.sure[1:2])


@pytest.mark.parametrize(
    ("options", "levels", "weight"),
    [
        ({}, 0.95, "one"),
        ({"weight": "likelihood"}, 0.95, "likelihood"),
        ({"levels": 0.8}, 0.8, "one"),
        ({"levels": 0.0}, None, "posterior"),
        ({"strategy": "soft"}, None, "posterior"),
        ({"families": "CD"}, None, "posterior"),
        ({"root": "free"}, None, "posterior"),
    ],
)
def test_what_is_not_said(options, levels, weight):
    """Sure levels wherever a diagnosis takes one leaf; pixels count by their diagnosis where it teaches all levels."""
    config = PsiConfig(**options)
    psi = build_psi(PsiSetting(config, build_knowledge(config, H), "hierarchical"))
    assert isinstance(psi, SureLevels) == (levels is not None)
    diagnosis = psi
    if isinstance(psi, SureLevels):
        assert psi.least == levels
        diagnosis = psi.psi
    assert diagnosis.weight == weight


@pytest.mark.parametrize("head", ["hierarchical", "flat"])
def test_a_threshold_leaves_out_whole_pixels_unless_told(head):
    config = PsiConfig(name="threshold")
    psi = build_psi(PsiSetting(config, build_knowledge(config, H), head))
    assert isinstance(psi, Threshold)
    assert psi.threshold == 0.95
