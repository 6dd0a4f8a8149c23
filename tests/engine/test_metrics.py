"""The one confusion matrix, held against plain Python that goes pixel by pixel."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import logicdiag as ld
from logicdiag.engine.metrics import Confusion, Violations, common_ancestor_heights
from logicdiag.kernels import reference
from tests.cases import predicates, random_hierarchy, random_knowledge

SMALL = ld.Hierarchy.from_dict(
    {"animal": ["bird", "cat"], "vehicle": {"road": ["car", "bus"], "plane": None}, "sky": None}
)


def at_level(h, leaf, level):
    """The ancestor of a leaf at a level, by name; a shallow leaf is itself."""
    path = h.path(leaf)
    return path[level - 1] if level <= len(path) else leaf


def height(h, name):
    return max((1 + height(h, child) for child in h.children(name)), default=0)


def ancestor_height(h, first, second):
    for name in reversed(h.path(first)):
        if name in h.path(second):
            return height(h, name)
    return h.height


def slow_iou(truth, prediction):
    """Name -> IoU of two lists of names, of the classes in either."""
    out = {}
    for name in {*truth, *prediction}:
        both = sum(t == p == name for t, p in zip(truth, prediction, strict=True))
        either = sum(name in pair for pair in zip(truth, prediction, strict=True))
        out[name] = both / either
    return out


@st.composite
def predictions(draw):
    """A random tree, and (prediction, truth) pairs in which some truth is ignored."""
    h = random_hierarchy(random.Random(draw(st.integers(0, 10**6))), most=12)
    n = len(h.leaves)
    truth = st.one_of(st.integers(0, n - 1), st.sampled_from([-1, 255]))
    return h, draw(st.lists(st.tuples(st.integers(0, n - 1), truth), max_size=60))


@settings(max_examples=150, deadline=None)
@given(predictions(), st.integers(1, 4))
def test_everything_equals_the_definition(case, parts):
    h, pairs = case
    confusion = Confusion(h)
    for part in range(parts):  # in any number of calls
        some = torch.tensor(pairs[part::parts], dtype=torch.int64).view(-1, 2)
        confusion.add(some[:, 0], some[:, 1])
    counted = [(h.leaves[p], h.leaves[t]) for p, t in pairs if t not in (-1, 255)]
    assert confusion.pixels == len(counted)
    for level, names in enumerate(h.levels, 1):
        expected = slow_iou([at_level(h, t, level) for _, t in counted], [at_level(h, p, level) for p, _ in counted])
        found = dict(zip(names, confusion.iou(level).tolist(), strict=True))
        assert {k: v for k, v in found.items() if not math.isnan(v)} == pytest.approx(expected)
        mean = sum(expected.values()) / len(expected) if expected else math.nan
        assert confusion.miou(level) == pytest.approx(mean, nan_ok=True)
        assert confusion.at_level(level).sum() == len(counted)
    right = sum(p == t for p, t in counted)
    assert confusion.accuracy() == pytest.approx(right / len(counted) if counted else math.nan, nan_ok=True)
    severity = confusion.severity()
    heights = [ancestor_height(h, p, t) for p, t in counted if p != t]
    assert severity.mean == pytest.approx(sum(heights) / len(heights) if heights else math.nan, nan_ok=True)
    shares = {k: heights.count(k) / len(heights) for k in range(1, h.height + 1)} if heights else {}
    assert severity.shares == pytest.approx(shares)


def test_a_mistake_is_as_severe_as_its_common_ancestor_is_high():
    leaf = {name: i for i, name in enumerate(SMALL.leaves)}
    heights = common_ancestor_heights(SMALL)
    assert heights[leaf["car"], leaf["car"]] == 0
    assert heights[leaf["car"], leaf["bus"]] == heights[leaf["bird"], leaf["cat"]] == 1
    assert heights[leaf["car"], leaf["plane"]] == 2
    assert heights[leaf["car"], leaf["sky"]] == heights[leaf["sky"], leaf["bird"]] == 3  # the virtual Root


def test_the_leaves_are_the_deepest_level():
    confusion = Confusion(SMALL)
    leaf = torch.randint(0, len(SMALL.leaves), (2, 50), generator=torch.Generator().manual_seed(0))
    confusion.add(leaf[0], leaf[1])
    assert torch.equal(confusion.at_level(SMALL.height), confusion.counts)
    assert confusion.miou() == confusion.miou(SMALL.height)


def test_only_predicted_is_zero_and_never_seen_is_left_out():
    h = ld.Hierarchy.from_dict(["a", "b", "c"])
    confusion = Confusion(h)
    confusion.add(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert confusion.iou().tolist() == pytest.approx([0.5, 0.0, math.nan], nan_ok=True)
    assert confusion.miou() == 0.25


def test_one_matrix_is_not_a_mean_over_images():
    h = ld.Hierarchy.from_dict(["a", "b"])
    images = [([0, 0, 0, 0], [0, 0, 0, 0]), ([0, 0, 0, 0], [0, 0, 0, 1])]
    whole, apart = Confusion(h), []
    for prediction, truth in images:
        one = Confusion(h)
        for confusion in (whole, one):
            confusion.add(torch.tensor(prediction), torch.tensor(truth))
        apart.append(one.miou())
    assert whole.miou() == (7 / 8 + 0) / 2
    assert sum(apart) / 2 == (1 + (3 / 4 + 0) / 2) / 2


def test_masks_as_bytes_count_alike():
    truth = torch.tensor([[0, 1], [255, 3]])
    prediction = torch.tensor([[0, 2], [1, 3]])
    first, second = Confusion(SMALL), Confusion(SMALL)
    first.add(prediction, truth)
    second.add(prediction.to(torch.uint8), truth.to(torch.uint8))
    assert torch.equal(first.counts, second.counts)
    assert first.pixels == 3


def test_what_cannot_be_counted_is_refused():
    confusion = Confusion(SMALL)
    with pytest.raises(ld.LogicDiagError, match=r"class 6 in the mask and 0 predicted; there are 6 leaves"):
        confusion.add(torch.tensor([0]), torch.tensor([6]))
    with pytest.raises(ld.LogicDiagError, match=r"prediction has shape \(2,\), the mask \(3,\)"):
        confusion.add(torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    assert confusion.pixels == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_violations_equal_the_definition(seed):
    rng = random.Random(seed)
    kb = random_knowledge(rng, most=7)
    n = len(kb.hierarchy)
    generator = torch.Generator().manual_seed(seed)
    probs, valid = torch.rand(2, n, 3, 4, generator=generator), torch.rand(2, 3, 4, generator=generator) < 0.7
    violations = Violations(kb)
    for image in range(2):
        violations.add(probs[image : image + 1], valid[image : image + 1])

    labels = [tuple(p > 0.5 for p in pixel) for pixel in probs.movedim(1, -1)[valid].tolist()]
    parents, rules = kb.hierarchy.parents, predicates(kb)
    parts = {f: (f, []) for f in kb.families} | {r.name: ("", [p]) for r, p in zip(kb.rules, rules, strict=True)}

    def broken(families, some):
        root = kb.root == "asserted" and "D" in families
        return [not reference.is_consistent(label, parents, families, root, some) for label in labels]

    assert violations.share() == pytest.approx(sum(broken(kb.families, rules)) / len(labels))
    assert violations.by_rule() == pytest.approx({k: sum(broken(*part)) / len(labels) for k, part in parts.items()})
