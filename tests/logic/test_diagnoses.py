"""Minimal diagnoses, as sets, against brute force and against an independent SAT solver."""

import os
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import logicdiag as ld
from logicdiag.kernels import reference
from logicdiag.logic.compile import compile_knowledge
from tests.cases import FAMILIES, Oracle, all_models, random_knowledge


def named(kb: ld.KnowledgeBase, flips: set[frozenset[int]]) -> set[frozenset[str]]:
    return {frozenset(kb.hierarchy.names[i] for i in one) for one in flips}


@settings(max_examples=150, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_equal_to_brute_force(rng):
    kb = random_knowledge(rng)
    models = all_models(kb)
    if not models:
        with pytest.raises(ld.ContradictionError):
            ld.Diagnoser(kb)
        return
    diagnoser = ld.Diagnoser(kb, strategy="uniform")
    for _ in range(5):
        probs = [rng.random() for _ in kb.hierarchy]
        found = diagnoser.diagnoses(probs)
        observed = tuple(p > 0.5 for p in probs)
        want = named(kb, reference.minimal_diagnoses(observed, models))
        assert len(found) == len(want)
        assert {d.flips for d in found} == want
        assert found.exhaustive


def check_against_oracle(cases: int, seed: int) -> int:
    """Random trees, families, roots and rules; 40 observations each. Returns how many were in conflict."""
    rng = random.Random(seed)
    done = conflicts = 0
    while done < cases:
        kb = random_knowledge(rng, most=rng.choice([6, 9, 12, 16]))
        oracle = Oracle(kb)
        if not oracle.satisfiable():
            with pytest.raises(ld.ContradictionError):
                compile_knowledge(kb)
            continue
        diagnoser = ld.Diagnoser(kb, strategy="uniform")
        for _ in range(40):
            density = rng.random()
            probs = [float(rng.random() < density) for _ in kb.hierarchy]
            want = named(kb, oracle.minimal_diagnoses(tuple(p > 0.5 for p in probs)))
            found = diagnoser.diagnoses(probs)
            assert len(found) == len(want), (kb.hierarchy.parents, kb.families, kb.root, kb.rules, probs)
            assert {d.flips for d in found} == want, (kb.hierarchy.parents, kb.families, kb.root, kb.rules, probs)
            conflicts += want != {frozenset()}
            done += 1
    return conflicts


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_the_solver(seed):
    assert check_against_oracle(1000, seed) > 400


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_equal_to_the_solver_on_many_cases(seed):
    cases = int(os.environ.get("LOGICDIAG_CASES", "100000"))
    assert check_against_oracle(-(-cases // 10), seed) > cases / 25


@pytest.mark.parametrize("root", ["asserted", "free"])
@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize("name", ["voc2012", "coco", "oxford_pets"])
def test_real_hierarchies_equal_the_solver(name, families, root):
    kb = ld.KnowledgeBase(ld.Hierarchy.load(name), families, root=root)
    oracle, diagnoser = Oracle(kb), ld.Diagnoser(kb, strategy="uniform")
    rng = random.Random(0)
    for _ in range(4):
        truth = {rng.choice(kb.hierarchy.leaves)}
        seen = {n for leaf in truth for n in kb.hierarchy.path(leaf)} ^ set(rng.sample(kb.hierarchy.names, 3))
        observed = tuple(name in seen for name in kb.hierarchy.names)
        found = {d.flips for d in diagnoser.diagnoses([float(b) for b in observed])}
        assert found == named(kb, oracle.minimal_diagnoses(observed))


def test_user_rules_on_a_real_hierarchy_equal_the_solver():
    rules = [
        "forall x: cat(x) -> ~boat(x)",
        "forall x: fork(x) | knife(x) -> kitchen(x) & ~animal(x)",
        "forall x: bird(x) <-> kite(x)",
    ]
    for families in ("C", "CE", "DE", "CDE", ""):
        kb = ld.KnowledgeBase(ld.Hierarchy.load("coco"), families, rules)
        oracle, diagnoser = Oracle(kb), ld.Diagnoser(kb, strategy="uniform")
        rng = random.Random(1)
        for _ in range(5):
            seen = set(rng.sample(("cat", "boat", "fork", "knife", "bird", "kite", "animal", "kitchen", "person"), 4))
            observed = tuple(name in seen for name in kb.hierarchy.names)
            found = {d.flips for d in diagnoser.diagnoses([float(b) for b in observed])}
            assert found == named(kb, oracle.minimal_diagnoses(observed))


def test_likeliest_first_and_normalised():
    rng = random.Random(5)
    for _ in range(50):
        kb = random_knowledge(rng, rules=1)
        try:
            diagnoser = ld.Diagnoser(kb)
        except ld.ContradictionError:
            continue
        found = diagnoser.diagnoses([rng.random() for _ in kb.hierarchy])
        probabilities = [d.probability for d in found]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1)


def test_a_budget_takes_the_likeliest_and_says_so():
    h = ld.Hierarchy.from_dict({f"g{i}": [f"g{i}_{j}" for j in range(4)] for i in range(4)})
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, "E"), strategy="predictive")
    rng = random.Random(0)
    probs = [0.5 + rng.random() / 2 for _ in h]
    everything = diagnoser.diagnoses(probs)
    assert len(everything) == 4**5
    assert everything.exhaustive
    few = diagnoser.diagnoses(probs, budget=7)
    assert (few.exhaustive, few.total) == (False, 4**5)
    assert [d.flips for d in few] == [d.flips for d in everything[:7]]
    assert diagnoser.diagnoses(probs, budget=4**5).exhaustive


def test_more_diagnoses_than_can_be_listed_is_an_error_with_the_number():
    h = ld.Hierarchy.from_dict({f"g{i}": [f"g{i}_{j}" for j in range(10)] for i in range(9)})
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, "E"))
    with pytest.raises(ld.LogicDiagError, match=rf"has {9 * 10**9} minimal diagnoses; pass budget=N"):
        diagnoser.diagnoses([0.9] * len(h))
    few = diagnoser.diagnoses([0.9] * len(h), budget=3)
    assert (len(few), few.total) == (3, 9 * 10**9)
    assert not few.exhaustive


def test_a_consistent_observation_has_one_diagnosis_without_flips():
    h = ld.Hierarchy.load("voc2012")
    for families in FAMILIES:
        diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, families))
        found = diagnoser.diagnoses({name: 0.9 if name in ("animal", "cat") else 0.1 for name in h})
        assert found == [ld.Diagnosis(frozenset(), 1.0)]


def test_deep_and_wide_trees():
    chain: dict = {"n0": None}
    for i in range(1, 300):
        chain = {f"n{i}": chain}
    h = ld.Hierarchy.from_dict(chain)
    for families in ("C", "CD", "CDE"):
        result = ld.Diagnoser(ld.KnowledgeBase(h, families))(torch.rand(3, len(h)))
        assert ld.KnowledgeBase(h, families).is_consistent(result.revised).all()
    wide = ld.Hierarchy.from_dict({"top": [f"leaf{i}" for i in range(1500)]})
    for families in ("E", "DE", "CDE"):
        kb = ld.KnowledgeBase(wide, families)
        assert kb.is_consistent(ld.Diagnoser(kb)(torch.rand(3, len(wide))).revised).all()


def test_a_contradiction_is_refused_with_its_rules():
    h = ld.Hierarchy.from_dict({"a": ["b", "c"], "d": None})
    rules = ["all_a: forall x: a(x)", "all_d: forall x: d(x)", "idle: forall x: b(x) -> a(x)"]
    for families in ("CDE", "E", "CE"):
        with pytest.raises(ld.ContradictionError) as caught:
            ld.Diagnoser(ld.KnowledgeBase(h, families, rules))
        assert caught.value.rules == ("E: a -> ~d", "all_a", "all_d")


@pytest.mark.parametrize("families", ["", "C"])
def test_independent_rules_do_not_multiply(families):
    k = 12
    h = ld.Hierarchy.from_dict([f"n{i}" for i in range(3 * k)])
    rules = [f"forall x: n{i}(x) & n{i + k}(x) -> n{i + 2 * k}(x)" for i in range(k)]
    kb = ld.KnowledgeBase(h, families, rules)
    [automaton] = ld.Diagnoser(kb).program.parts
    assert automaton.size < 40 * 3 * k
    found = ld.Diagnoser(kb).diagnoses([0.9] * 2 * k + [0.1] * k, budget=5)
    assert len(found[0].flips) == k
    assert not found.exhaustive


def test_probabilities_are_relative_to_all_minimal_diagnoses_even_if_few_are_listed():
    h = ld.Hierarchy.from_dict({f"g{i}": [f"g{i}_{j}" for j in range(3)] for i in range(4)})
    for families in ("E", "CE"):
        diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, families))
        probs = torch.rand(len(h), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        everything = diagnoser.diagnoses(probs)
        few = diagnoser.diagnoses(probs, budget=3)
        assert [d.probability for d in few] == pytest.approx([d.probability for d in everything[:3]])
