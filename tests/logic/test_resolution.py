"""Which diagnosis is taken: draws agree with the posterior, labels satisfy the rules, what is not valid does not
count.
"""

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import logicdiag as ld
from logicdiag.kernels import automaton
from tests.cases import FAMILIES, random_knowledge

STRATEGIES = ["uniform", "predictive", "greedy", "sampling", "soft"]


def diagnosers(rng, strategy, count, **options):
    while count:
        try:
            yield ld.Diagnoser(random_knowledge(rng, most=8, **options), strategy=strategy)
        except ld.ContradictionError:
            continue
        count -= 1


def flips(result, names):
    return [
        frozenset(n for n, flip in zip(names, row, strict=True) if flip)
        for row in (result.observed ^ result.revised).tolist()
    ]


@settings(max_examples=120, deadline=None)
@given(rng=st.randoms(use_true_random=False), strategy=st.sampled_from(STRATEGIES), saturated=st.booleans())
def test_no_label_violates_the_rules_ever(rng, strategy, saturated):
    [diagnoser] = diagnosers(rng, strategy, 1)
    n = len(diagnoser.kb.hierarchy)
    rows = [[rng.random() for _ in range(n)] for _ in range(30)]
    probs = torch.tensor(rows, dtype=rng.choice([torch.float32, torch.float64]))
    if saturated:
        probs = probs.round()
    result = diagnoser(probs)
    assert diagnoser.kb.is_consistent(result.revised).all()
    assert torch.equal(result.conflict, ~diagnoser.kb.is_consistent(result.observed))
    assert torch.equal(result.revised[~result.conflict], result.observed[~result.conflict])
    assert (result.log_prob <= 0).all()
    assert torch.isfinite(result.log_prob).all()
    assert (result.log_prob[~result.conflict] == 0).all()


@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize("name", ["cityscapes", "coco"])
def test_every_label_of_a_noisy_image_is_repaired(name, families):
    kb = ld.KnowledgeBase(ld.Hierarchy.load(name), families)
    probs = torch.rand(1, len(kb.hierarchy), 48, 64, generator=torch.Generator().manual_seed(0))
    result = ld.Diagnoser(kb)(probs)
    assert kb.is_consistent(result.revised.movedim(1, -1)).all()


@pytest.mark.parametrize("strategy", ["uniform", "predictive", "sampling"])
@pytest.mark.parametrize("families", ["CDE", "CE", "D"])
def test_draws_agree_with_the_posterior(strategy, families):
    """A chi-square test at each of several observations, at one in ten thousand over all."""
    rng = random.Random(7)
    generator = torch.Generator().manual_seed(7)
    p_values = []
    for diagnoser in diagnosers(rng, strategy, 25, families=families):
        names = diagnoser.kb.hierarchy.names
        probs = torch.tensor([[rng.random() for _ in names]], dtype=torch.float64)
        found = diagnoser.diagnoses(probs[0])
        if len(found) < 2:
            continue
        draws = 4000
        result = diagnoser(probs.expand(draws, -1), generator=generator)
        counts = Counter(flips(result, names))
        assert set(counts) <= {d.flips for d in found}
        likely = [d for d in found if d.probability * draws >= 5]
        rest = draws - sum(counts[d.flips] for d in likely)
        rest_expected = draws * (1 - math.fsum(d.probability for d in likely))
        observed = [counts[d.flips] for d in likely] + ([rest] if rest_expected > 1 else [])
        expected = [d.probability * draws for d in likely] + ([rest_expected] if rest_expected > 1 else [])
        if len(observed) > 1:
            scale = sum(observed) / sum(expected)
            p_values.append(chisquare(observed, [e * scale for e in expected]).pvalue)
    assert len(p_values) >= 5
    assert min(p_values) > 1e-4 / len(p_values)


@pytest.mark.parametrize("families", ["CDE", "C", "DE"])
def test_log_prob_is_that_of_the_diagnosis_taken(families):
    rng = random.Random(9)
    for strategy in STRATEGIES:
        for diagnoser in diagnosers(rng, strategy, 8, families=families):
            names = diagnoser.kb.hierarchy.names
            batch = torch.tensor([[rng.random() for _ in names] for _ in range(6)], dtype=torch.float64)
            result = diagnoser(batch)
            for row, taken, log_prob in zip(batch, flips(result, names), result.log_prob.tolist(), strict=True):
                found = diagnoser.diagnoses(row, degrees=result.truth_degrees)
                by_flips = {d.flips: d.probability for d in found}
                assert math.exp(log_prob) == pytest.approx(by_flips[taken], abs=1e-9)
                if strategy in ("greedy", "soft"):
                    assert by_flips[taken] == pytest.approx(found[0].probability)


@pytest.mark.parametrize("families", ["CDE", "C", "CE", "D"])
def test_soft_labels_are_the_expectation(families):
    rng = random.Random(11)
    for diagnoser in diagnosers(rng, "soft", 12, families=families):
        names = diagnoser.kb.hierarchy.names
        batch = torch.tensor([[rng.random() for _ in names] for _ in range(4)], dtype=torch.float64)
        result = diagnoser(batch)
        for row, expected in zip(batch, result.expected, strict=True):
            found = diagnoser.diagnoses(row, degrees=result.truth_degrees)
            for name, value, probability in zip(names, expected.tolist(), row.tolist(), strict=True):
                flipped = math.fsum(d.probability for d in found if name in d.flips)
                assert value == pytest.approx(1 - flipped if probability > 0.5 else flipped, abs=1e-9)


@pytest.mark.parametrize("families", ["CDE", "CE"])
def test_the_same_generator_gives_the_same_answer(families):
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(ld.Hierarchy.load("coco"), families))
    probs = torch.rand(1, 94, 20, 20)
    one = diagnoser(probs, generator=torch.Generator().manual_seed(1))
    same = diagnoser(probs, generator=torch.Generator().manual_seed(1))
    other = diagnoser(probs, generator=torch.Generator().manual_seed(2))
    assert torch.equal(one.revised, same.revised)
    assert torch.equal(one.log_prob, same.log_prob)
    assert not torch.equal(one.revised, other.revised)


@pytest.mark.parametrize("families", ["CDE", "CE"])
def test_pixels_outside_of_valid_count_nowhere(families):
    kb = ld.KnowledgeBase(ld.Hierarchy.load("voc2012"), families, ["forall x: ~cat(x) | animal(x)"])
    diagnoser = ld.Diagnoser(kb, strategy="greedy")
    probs = torch.rand(2, 24, 9, 7, generator=torch.Generator().manual_seed(0))
    valid = torch.rand(2, 9, 7, generator=torch.Generator().manual_seed(1)) > 0.4
    garbage = probs.clone()
    garbage.movedim(1, -1)[~valid] = torch.tensor([float("nan"), float("inf"), -3.0, 7.0] * 6)
    alone = diagnoser(probs.movedim(1, -1)[valid])
    for given_probs in (probs, garbage):
        result = diagnoser(given_probs, valid=valid)
        for name, degrees in alone.truth_degrees.items():
            assert torch.allclose(result.truth_degrees[name], degrees)
        assert torch.equal(result.revised.movedim(1, -1)[valid], alone.revised)
        assert torch.allclose(result.log_prob[valid], alone.log_prob, atol=1e-5)
        assert torch.equal(result.leaf[valid], alone.leaf)
        assert not result.conflict[~valid].any()
        assert (result.leaf[~valid] == -1).all()
        assert (result.log_prob[~valid] == 0).all()
        assert kb.is_consistent(result.revised.movedim(1, -1)).all()


def test_leaf_is_the_single_true_leaf():
    h = ld.Hierarchy.from_dict({"a": ["b", "c"], "d": None})
    result = ld.Diagnoser(ld.KnowledgeBase(h, "CD", root="free"))(
        torch.tensor([[0.9, 0.9, 0.1, 0.1], [0.9, 0.9, 0.9, 0.1], [0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.9]])
    )
    assert result.leaf.tolist() == [0, -1, -1, 2]
    assert result.leaf.dtype == torch.int64


@pytest.mark.parametrize(
    "small", [{torch.float32: 2.0, torch.float64: 1e-150}, {torch.float32: 2.0, torch.float64: 2.0}]
)
def test_all_arithmetics_of_the_automaton_agree(small, monkeypatch):
    """Where float32 products would leave their range, float64 and then logarithms take over."""
    rng = random.Random(13)
    for diagnoser in diagnosers(rng, "soft", 25):
        probs = torch.rand(20, len(diagnoser.kb.hierarchy), generator=torch.Generator().manual_seed(0))
        plain = diagnoser(probs)
        with monkeypatch.context() as patch:
            patch.setattr(automaton, "SMALL", small)
            exact = diagnoser(probs)
            sampled = ld.Diagnoser(diagnoser.kb)(probs)
        assert torch.allclose(plain.log_prob, exact.log_prob, atol=1e-5)
        assert torch.allclose(plain.expected, exact.expected, atol=1e-5)
        assert diagnoser.kb.is_consistent(sampled.revised).all()


def test_extreme_certainty_does_not_overflow():
    """94 outputs at the clamp, all wrong in the same way: products would be 1e-500."""
    kb = ld.KnowledgeBase(ld.Hierarchy.load("coco"), "CE")
    for value in (0.0, 1.0):
        for strategy in STRATEGIES:
            result = ld.Diagnoser(kb, strategy=strategy)(torch.full((3, 94), value))
            assert kb.is_consistent(result.revised).all()
            assert torch.isfinite(result.log_prob).all()


def test_degrees_of_a_larger_batch_can_be_brought():
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(ld.Hierarchy.load("voc2012")), strategy="greedy")
    probs = torch.rand(50, 24)
    whole = diagnoser(probs)
    part = diagnoser(probs[:10], degrees=whole.truth_degrees)
    assert torch.equal(part.revised, whole.revised[:10])
    with pytest.raises(ld.LogicDiagError, match=r"truth degrees are of \['C'\]"):
        diagnoser(probs, degrees={"C": whole.truth_degrees["C"]})


@pytest.mark.parametrize("families", ["CDE", "CE"])
def test_draws_do_not_depend_on_pixels_outside_of_valid(families):
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(ld.Hierarchy.load("voc2012"), families))
    probs = torch.rand(400, 24, generator=torch.Generator().manual_seed(0))
    valid = torch.arange(400) % 2 == 0
    other = probs.clone()
    other[~valid] = 0
    other[~valid, 0] = 1
    one = diagnoser(probs, valid=valid, generator=torch.Generator().manual_seed(1))
    same = diagnoser(other, valid=valid, generator=torch.Generator().manual_seed(1))
    assert torch.equal(one.revised[valid], same.revised[valid])
    assert torch.equal(one.log_prob, same.log_prob)
    assert diagnoser.kb.is_consistent(one.revised).all()
