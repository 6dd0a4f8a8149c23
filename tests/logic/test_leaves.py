"""Leaves scored by outputs; probabilities of all concepts that follow."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag import Hierarchy, KnowledgeBase
from logicdiag.errors import OptionError
from logicdiag.logic.leaves import Leaves
from tests.cases import random_hierarchy

H = Hierarchy.from_dict({"animal": {"bird": ["wren", "owl"], "cat": None}, "sky": None})


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_a_path_is_as_likely_as_its_labels_given_the_rules(seed):
    """By listing all labels, of which independent outputs make each as likely as a product."""
    probs = torch.rand(len(H), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    labels = torch.tensor(list(itertools.product([False, True], repeat=len(H))))
    weight = torch.where(labels, probs, 1 - probs).prod(1) * KnowledgeBase(H).is_consistent(labels)
    expected = (weight[:, None] * labels).sum(0) / weight.sum()
    found = Leaves(H, "path").double().probs(probs.logit().view(1, -1, 1))[0, :, 0]
    torch.testing.assert_close(found, expected)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_by_the_tree_siblings_share_what_their_parent_has(seed):
    """From the top down, by the definition."""
    h = random_hierarchy(random.Random(seed), 9, 3)
    logits = 4 * torch.randn(len(h), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = {None: 1.0}
    for name in h.names:  # parents come first
        odds = {sibling: float(logits[h.index(sibling)].exp()) for sibling in (name, *h.siblings(name))}
        expected[name] = expected[h.parent(name)] * odds[name] / sum(odds.values())
    leaves = Leaves(h, "tree").double()
    found = leaves.probs(logits.view(1, -1, 1))[0, :, 0]
    torch.testing.assert_close(found, torch.tensor([expected[name] for name in h.names], dtype=torch.float64))
    torch.testing.assert_close(leaves.scores(logits.view(1, -1, 1))[0, :, 0].exp(), found[list(h.leaf_indices)])


def test_by_the_tree_far_groups_are_not_lost():
    """Of siblings that are hopeless against the others, one is still likelier; in half precision, too."""
    logits = torch.zeros(1, len(H), 1)
    logits[0, H.index("sky")] = 200.0
    logits[0, H.index("owl")] = 3.0
    for dtype in (torch.float32, torch.bfloat16):
        wren, owl, cat, sky = Leaves(H, "tree").scores(logits.to(dtype)).flatten().tolist()
        assert owl - wren == pytest.approx(3)
        assert (sky, cat) == pytest.approx((0, -200 - math.log(2)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_shares_of_a_path_multiply_to_its_leaf(seed):
    """And to every concept on the way; a pixel without a leaf shares nothing."""
    h = random_hierarchy(random.Random(seed), 9, 3)
    g = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(1, len(h), 40, generator=g, dtype=torch.float64)
    leaf = torch.randint(-1, len(h.leaves), (1, 40), generator=g)
    leaves = Leaves(h, "tree").double()
    shares, probs = leaves.shares(logits, leaf), leaves.probs(logits)
    for pixel, one in enumerate(leaf[0].tolist()):
        path = h.path_indices(h.leaf_indices[one]) if one >= 0 else ()
        found = shares[0, :, pixel].cumsum(0).exp()
        torch.testing.assert_close(found[: len(path)], probs[0, list(path), pixel])
        assert not shares[0, len(path) :, pixel].any()


def test_concepts_are_as_likely_as_what_is_below():
    logits = torch.randn(2, len(H), 3, generator=torch.Generator().manual_seed(0))
    found = Leaves(H, "leaf").probs(logits)
    torch.testing.assert_close(found[:, list(H.leaf_indices)], logits[:, list(H.leaf_indices)].softmax(1))
    wren, owl, cat, bird, animal = (found[:, H.index(n)] for n in ("wren", "owl", "cat", "bird", "animal"))
    torch.testing.assert_close(bird, wren + owl)
    torch.testing.assert_close(animal, bird + cat)


def test_the_deepest_that_is_likely():
    """wren 0.5, owl 0.3, cat 0.15, sky 0.05: bird is 0.8, animal 0.95."""
    leaves = Leaves(H)
    logits = torch.zeros(1, len(H), 1, 1)
    for name, p in (("wren", 0.5), ("owl", 0.3), ("cat", 0.15), ("sky", 0.05)):
        logits[0, H.index(name)] = torch.tensor(p).log()
    probs = leaves.probs(logits)

    def deepest(leaf, least):
        index = torch.tensor(H.leaves.index(leaf)).view(1, 1, 1)
        sure, some = leaves.deepest(probs, index, least)
        return H.names[int(sure)], float(some)

    assert deepest("wren", 0.4) == ("wren", 1.0)
    assert deepest("wren", 0.7) == ("bird", 1.0)
    assert deepest("owl", 0.9) == ("animal", 1.0)
    assert deepest("cat", 0.9) == ("animal", 1.0)
    assert deepest("owl", 0.99) == ("animal", 0.0)
    assert deepest("sky", 0.04) == ("sky", 1.0)


def test_other_decisions_are_refused():
    with pytest.raises(OptionError, match="model.decision is 'paths'.*did you mean 'path'"):
        Leaves(H, "paths")
