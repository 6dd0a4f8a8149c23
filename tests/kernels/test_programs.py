"""The two sweeps against each other and against the specification."""

import random

import pytest
import torch
from scipy.stats import chisquare

import logicdiag as ld
from logicdiag.kernels import automaton, paths, reference
from logicdiag.kernels.layout import Layout
from logicdiag.kernels.paths import PathProgram
from logicdiag.kernels.taken import FORBIDDEN, cumulative_choice, first_largest
from logicdiag.kernels.truth import powered
from logicdiag.logic.automaton import TooLarge, build
from tests.cases import random_hierarchy, random_knowledge


@pytest.mark.parametrize("nothing", [False, True])
def test_the_closed_form_is_the_subset_minimum(nothing):
    """Facts 3 and 4, with some leaves pruned as a user's rules would."""
    rng = random.Random(1)
    for _ in range(120):
        h = random_hierarchy(rng, 12)
        layout = Layout.of(h.parents)
        allowed = [rng.random() < 0.8 for _ in h.leaves]
        if not any(allowed):
            continue
        program = PathProgram(layout, tuple(allowed), nothing)
        models = [
            tuple(i in h.path_indices(leaf) for i in range(len(h)))
            for leaf, ok in zip(h.leaf_indices, allowed, strict=True)
            if ok
        ]
        models += [(False,) * len(h)] if nothing else []
        observed = tuple(rng.random() < 0.5 for _ in h.names)
        flip = torch.randn(len(h), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(len(h)))
        rows = torch.tensor([[observed[c]] for c in layout.order])
        weights = paths.log_weights(program, rows, flip)[:, 0]
        candidates = [tuple(i in h.path_indices(leaf) for i in range(len(h))) for leaf in h.leaf_indices]
        candidates += [(False,) * len(h)] if nothing else []
        survivors = {
            frozenset(i for i in range(len(h)) if observed[i] != model[i]): float(weight)
            for model, weight in zip(candidates, weights, strict=True)
            if weight > -FORBIDDEN / 2
        }
        assert set(survivors) == reference.minimal_diagnoses(observed, models)
        base = next(iter(survivors))
        for flips, weight in survivors.items():
            want = sum(float(flip[layout.row_of[i]]) for i in flips) - sum(float(flip[layout.row_of[i]]) for i in base)
            assert weight - survivors[base] == pytest.approx(want, abs=1e-9)


def test_paths_equal_the_automaton_of_the_same_rules():
    rng = random.Random(2)
    for _ in range(40):
        kb = random_knowledge(rng, families="CDE")
        try:
            diagnoser = ld.Diagnoser(kb, strategy="soft")
        except ld.ContradictionError:
            continue
        layout = diagnoser.program.layout
        general = build(kb, range(len(kb.hierarchy)), [r.body for r in kb.rules], layout.row_of, 10**6)
        observed = torch.rand(len(kb.hierarchy), 50) > 0.5
        flip = torch.randn(len(kb.hierarchy), 50, dtype=torch.float64)
        one = paths.diagnose(diagnoser.program.parts[0], observed, flip, "best", None, True)
        other = automaton.diagnose(general, observed, flip, "best", None, True)
        assert torch.equal(one.revised, other.revised)
        assert torch.allclose(one.log_prob, other.log_prob, atol=1e-9)
        assert torch.allclose(one.expected, other.expected, atol=1e-9)


def test_an_automaton_that_would_be_too_large_is_given_up():
    kb = ld.KnowledgeBase(ld.Hierarchy.load("coco"), "C")
    with pytest.raises(TooLarge):
        build(kb, range(94), [], Layout.of(kb.hierarchy.parents).row_of, limit=100)


def test_transitions_grow_linearly_with_nodes():
    sizes = {}
    for groups in (4, 40, 160):
        h = ld.Hierarchy.from_dict({f"g{i}": [f"g{i}_{j}" for j in range(12)] for i in range(groups)})
        for families in ("C", "D", "E", "CD", "CE", "DE"):
            program = ld.Diagnoser(ld.KnowledgeBase(h, families)).program
            sizes[families, groups] = sum(part.size for part in program.parts) / len(h)
    for families in ("C", "D", "E", "CD", "CE", "DE"):
        assert sizes[families, 160] <= 1.1 * sizes[families, 4]


def test_choices():
    share = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0], [6.0, 3.0]])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([cumulative_choice(share, generator) for _ in range(4000)])
    assert set(drawn[:, 0].tolist()) == {1.0, 3.0}
    assert set(drawn[:, 1].tolist()) == {0.0, 3.0}
    counts = [int((drawn[:, 0] == 1).sum()), int((drawn[:, 0] == 3).sum())]
    assert chisquare(counts, [1000, 3000]).pvalue > 1e-4
    weight = torch.tensor([[1.0, 3.0], [2.0, 3.0], [2.0, 1.0]])
    assert first_largest(weight, weight.amax(0)).tolist() == [1, 0]


@pytest.mark.parametrize("power", [1, 2, 3, 5, 8, 16, 2.5, 20])
def test_powers(power):
    values = torch.rand(100, dtype=torch.float64)
    assert torch.allclose(powered(values, power), values**power, rtol=1e-12)
