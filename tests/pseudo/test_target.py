from dataclasses import replace

import pytest
import torch

import logicdiag as ld
from logicdiag.errors import ConfigError
from logicdiag.pseudo.build import PsiSetting, build_knowledge, build_psi
from logicdiag.pseudo.config import PsiConfig
from logicdiag.pseudo.target import Prediction, Target
from logicdiag.pseudo.threshold import Threshold

H = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
"""Channels: animal, bird, cat, sky; leaves: bird, cat, sky."""


def prediction(rows, valid=None, flat=True):
    """One view, one row of pixels; rows of probabilities."""
    probs = torch.tensor(rows).T[None, :, None]
    logits = probs.log() if flat else probs.logit()
    seen = torch.ones(1, 1, len(rows), dtype=torch.bool) if valid is None else torch.tensor([[valid]])
    return Prediction(logits, seen)


NOTHING = Prediction(torch.zeros(0, 4, 1, 1), torch.zeros(0, 1, 1, dtype=torch.bool))


def test_threshold_of_the_flat_head():
    rows = [[0.96, 0.03, 0.01], [0.2, 0.75, 0.05], [0.02, 0.03, 0.95], [0.0, 1.0, 0.0]]
    target, statistics = Threshold(H, 0.74, "flat")(prediction(rows, [True, True, True, False]), NOTHING)
    assert target.leaf.flatten().tolist() == [0, 1, 2, 1]
    assert target.weight.flatten().tolist() == [1, 1, 1, 0]
    assert target.labels is None
    target, statistics = Threshold(H, 0.9, "flat")(prediction(rows, [True, True, True, False]), NOTHING)
    assert target.weight.flatten().tolist() == [1, 0, 1, 0]
    assert [float(x) for x in statistics["counted"]] == [2, 3]


def test_threshold_of_the_hierarchical_head_looks_at_the_leaves_alone():
    rows = [[0.99, 0.2, 0.5, 0.1], [0.1, 0.9, 0.2, 0.95], [0.9, 0.8, 0.8, 0.1]]
    target, _ = Threshold(H, 0.5, "hierarchical")(prediction(rows, flat=False), NOTHING)
    assert target.leaf.flatten().tolist() == [1, 2, 0]
    assert target.weight.flatten().tolist() == [1, 1, 1]
    target, _ = Threshold(H, 0.9, "hierarchical")(prediction(rows, flat=False), NOTHING)
    assert target.weight.flatten().tolist() == [0, 1, 0]


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_thresholds_at_the_ends(threshold):
    target, _ = Threshold(H, threshold, "flat")(prediction([[0.4, 0.3, 0.3], [1.0, 0.0, 0.0]]), NOTHING)
    assert target.weight.flatten().tolist() == ([1, 1] if threshold == 0 else [0, 1])


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_thresholds_that_are_no_probability(threshold):
    with pytest.raises(ConfigError, match=f"psi.threshold is {threshold}, expected a number from 0 to 1"):
        Threshold(H, threshold, "flat")


def test_half_precision_is_told_apart_in_float32():
    """No number of bfloat16 lies between 0.996 and 1: logits of 6 and 8 are apart, probabilities would not be."""
    logits = torch.tensor([6.0, 8.0]).view(1, 1, 1, 2) * torch.tensor([0.0, 1.0, -1.0, -1.0]).view(1, 4, 1, 1)
    seen = torch.ones(1, 1, 2, dtype=torch.bool)
    target, _ = Threshold(H, 0.999, "hierarchical")(Prediction(logits.bfloat16(), seen), NOTHING)
    assert target.weight.flatten().tolist() == [0, 1]


def test_cutmix_of_targets():
    g = torch.Generator().manual_seed(0)
    boxes = torch.zeros(3, 4, 5, dtype=torch.bool)
    boxes[0, 1:3, 2:4] = True
    boxes[2] = True
    leaf = torch.randint(9, (3, 4, 5), generator=g)
    target = Target(torch.rand(3, 4, 5, generator=g), leaf, torch.rand(3, 7, 4, 5, generator=g))
    mixed = target.mixed(boxes)
    assert mixed.weight.dtype == target.weight.dtype
    for before, after in ((target.weight, mixed.weight), (leaf, mixed.leaf), (target.labels, mixed.labels)):
        assert torch.equal(after[0, ..., 1:3, 2:4], before[1, ..., 1:3, 2:4])
        outside = ~boxes[0]
        assert torch.equal(after[0, ..., outside], before[0, ..., outside])
        assert torch.equal(after[1], before[1])
        assert torch.equal(after[2], before[2])  # a last odd one is its own partner
    assert Target(target.weight, leaf).mixed(boxes).labels is None
    assert Target(target.weight, None, target.labels).mixed(boxes).leaf is None


def test_leaves_of_a_target():
    weight = torch.ones(1, 1, 2)
    channels = torch.tensor(H.leaf_indices)
    assert Target(weight, torch.tensor([[[2, 0]]])).leaves(channels).tolist() == [[[2, 0]]]
    labels = torch.tensor([[0.9, 0.2, 0.7, 0.1], [0.9, 0.3, 0.2, 0.4]]).T[None, :, None]
    assert Target(weight, None, labels).leaves(channels).tolist() == [[[1, 2]]]


def test_only_some_pixels_of_a_target():
    target = Target(torch.tensor([[[0.5, 1.0]]]), torch.tensor([[[2, 0]]]))
    found = target.only(torch.tensor([[[True, False]]]))
    assert found.weight.tolist() == [[[0.5, 0.0]]]
    assert found.leaf is target.leaf


@pytest.mark.parametrize("name", ["threshold", "diagnosis"])
def test_concept_by_concept_says_the_same(name):
    """What is taken and how much it counts stay; a path is written out."""
    by = {}
    for target in ("leaf", "concepts"):
        config = PsiConfig(name=name, target=target, levels=0.0, threshold=0.5, strategy="greedy")
        psi = build_psi(PsiSetting(config, build_knowledge(config, H), "hierarchical"))
        unlabeled = prediction([[0.9, 0.2, 0.8, 0.1], [0.4, 0.3, 0.1, 0.9], [0.6, 0.4, 0.3, 0.4]], flat=False)
        by[target], _ = psi(replace(unlabeled, plan={"seeds": torch.tensor([3])}), NOTHING)
    leaf, concepts = by["leaf"], by["concepts"]
    assert (leaf.labels, concepts.leaf) == (None, None)
    assert torch.equal(leaf.weight, concepts.weight)
    paths = {0: [1, 1, 0, 0], 1: [1, 0, 1, 0], 2: [0, 0, 0, 1]}
    assert concepts.labels[0, :, 0].T.tolist() == [paths[int(i)] for i in leaf.leaf.flatten()]
    assert len(set(leaf.leaf.flatten().tolist())) > 1


def test_labels_that_are_no_path_stay_what_they_are():
    config = PsiConfig(target="concepts", families="C", strategy="greedy")
    psi = build_psi(PsiSetting(config, build_knowledge(config, H), "hierarchical"))
    target, _ = psi(replace(prediction([[0.9, 0.8, 0.8, 0.1]], flat=False), plan={"seeds": torch.tensor([3])}), NOTHING)
    assert target.labels.flatten().tolist() == [1, 1, 1, 0]
