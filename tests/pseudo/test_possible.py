"""Targets that say which leaves are possible, and no more."""

import pytest
import torch

from logicdiag.errors import ConfigError
from logicdiag.logic.leaves import Leaves
from logicdiag.pseudo.build import PsiSetting, build_knowledge, build_psi
from logicdiag.pseudo.config import PsiConfig
from logicdiag.pseudo.target import Prediction

from .test_diagnosis import H, prediction


def made(decision="leaf", head="hierarchical", **options):
    config = PsiConfig(**{"weight": "one", **options})
    return build_psi(PsiSetting(config, build_knowledge(config, H), head, decision=decision))


@pytest.mark.parametrize("decision", ["leaf", "path"])
@pytest.mark.parametrize("name", ["diagnosis", "threshold"])
def test_leaves_are_possible_that_are_likely_enough_or_taken(name, decision):
    unlabeled, labeled = prediction(0), prediction(1)
    probs = Leaves(H, decision).scores(unlabeled.logits).softmax(1)
    counted, single = [], []
    for least in (0.02, 0.1, 0.3):
        target, statistics = made(decision, name=name, possible=least)(unlabeled, labeled)
        whole, _ = made(decision, name=name, threshold=0.0)(unlabeled, labeled)
        assert torch.equal(target.leaf, whole.leaf)
        for b, y, x in torch.ones_like(unlabeled.valid).nonzero().tolist():
            expected = {i for i in range(len(H.leaves)) if probs[b, i, y, x] >= least} | {int(whole.leaf[b, y, x])}
            assert set(target.possible[b, :, y, x].nonzero().flatten().tolist()) == expected
            known = len(expected) < len(H.leaves) and bool(unlabeled.valid[b, y, x])
            assert float(target.weight[b, y, x]) == float(known)
        counted.append(float(statistics["counted"][0]))
        single.append(float(statistics["single"][0]))
        assert int(statistics["single"][1]) == int(unlabeled.valid.sum())
    assert counted == sorted(counted)
    assert single == sorted(single)
    assert single[0] < single[-1]


def test_a_flat_head():
    logits = prediction(0).logits[:, : len(H.leaves)]
    unlabeled = Prediction(logits, prediction(0).valid)
    target, _ = made(head="flat", name="threshold", possible=0.1)(unlabeled, unlabeled)
    probs = logits.softmax(1)
    assert torch.equal(target.leaf, probs.argmax(1))
    assert torch.equal(target.possible, (probs >= 0.1) | (probs == probs.amax(1, keepdim=True)))


def test_sets_go_with_their_pixels():
    target, _ = made(possible=0.1)(prediction(0), prediction(1))
    boxes = torch.zeros(2, 5, 6, dtype=torch.bool)
    boxes[0, :3] = True
    mixed = target.mixed(boxes)
    assert torch.equal(mixed.possible[0, :, :3], target.possible[1, :, :3])
    assert torch.equal(mixed.possible[0, :, 3:], target.possible[0, :, 3:])
    assert torch.equal(target.cut(1, 2).possible, target.possible[1:2])
    places = torch.tensor([[0, 29, 7], [3, 3, 12]])
    picked = target.at(places)
    for b in range(2):
        for i, place in enumerate(places[b].tolist()):
            y, x = divmod(place, 6)
            assert torch.equal(picked.possible[b, :, i], target.possible[b, :, y, x])
            assert picked.leaf[b, i] == target.leaf[b, y, x]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"possible": 0.0}, "psi.possible is 0.0, expected a number above 0, below 1, or null"),
        ({"possible": 1.0}, "psi.possible is 1.0"),
        ({"possible": 0.1, "levels": 0.9}, "psi.levels is 0.9 and psi.possible is 0.1.*set the other to null"),
        ({"possible": 0.1, "strategy": "soft"}, "psi.possible is 0.1, which needs one leaf a pixel"),
        ({"possible": 0.1, "families": "C"}, "psi.possible is 0.1, which needs one leaf a pixel"),
    ],
)
def test_what_makes_no_sense(options, says):
    with pytest.raises(ConfigError, match=says):
        made(**options)
