"""The search agrees with the automaton wherever both can be had."""

import random

import pytest
import torch

import logicdiag as ld
from logicdiag.logic import diagnosis
from logicdiag.logic.compile import compile_knowledge
from logicdiag.logic.search import Search
from tests.cases import random_knowledge


@pytest.fixture
def always_search(monkeypatch):
    """Diagnosers that search, whatever the rules."""

    def make(kb, **options):
        with monkeypatch.context() as patch, pytest.warns(ld.TangledRulesWarning):
            patch.setattr(diagnosis, "compile_knowledge", lambda kb: compile_knowledge(kb, work=1))
            return ld.Diagnoser(kb, **options)

    return make


def satisfiable_bases(rng, count):
    while count:
        kb = random_knowledge(rng, families=rng.choice(["C", "D", "E", "CD", "CE", "DE"]))
        try:
            plain = ld.Diagnoser(kb, strategy="soft")
        except ld.ContradictionError:
            continue
        if plain.program.parts and len(kb.hierarchy) > 2:
            yield kb, plain
            count -= 1


def test_search_equals_automaton(always_search):
    rng = random.Random(0)
    torch.manual_seed(0)
    for kb, plain in satisfiable_bases(rng, 60):
        searcher = always_search(kb, strategy="soft")
        assert any(isinstance(part, Search) for part in searcher.program.parts)
        probs = torch.rand(10, len(kb.hierarchy), dtype=torch.float64)
        one, other = searcher(probs), plain(probs)
        assert torch.allclose(one.log_prob, other.log_prob)
        assert torch.allclose(one.expected, other.expected)
        assert one.exhaustive.all()
        for row in probs[:3]:
            assert {d.flips for d in searcher.diagnoses(row)} == {d.flips for d in plain.diagnoses(row)}


def test_past_the_budget_the_likeliest_come_first(always_search):
    rng = random.Random(1)
    torch.manual_seed(1)
    cut = 0
    for kb, plain in satisfiable_bases(rng, 60):
        searcher = always_search(kb, strategy="soft", budget=2)
        for row in torch.rand(4, len(kb.hierarchy), dtype=torch.float64):
            one, other = searcher.diagnoses(row, budget=2), plain.diagnoses(row, budget=2)
            assert one.exhaustive == other.exhaustive
            # a cut search knows its diagnoses only relative to each other
            first, second = one[0].probability, other[0].probability
            assert [d.probability / first for d in one] == pytest.approx([d.probability / second for d in other])
            cut += not one.exhaustive
            result = searcher(row[None])
            assert kb.is_consistent(result.revised).all()
            # parts are weighed one by one, so a whole list may be cut where no part is
            assert bool(result.exhaustive) == one.exhaustive or len(searcher.program.parts) > 1
    assert cut > 10


def test_sampling_from_a_search(always_search):
    h = ld.Hierarchy.from_dict({"a": ["b", "c"], "d": ["e", "f"]})
    kb = ld.KnowledgeBase(h, "CE", ["forall x: b(x) -> ~e(x)"])
    searcher = always_search(kb, strategy="sampling")
    probs = torch.rand(500, len(h), generator=torch.Generator().manual_seed(0))
    first = searcher(probs, generator=torch.Generator().manual_seed(3))
    again = searcher(probs, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first.revised, again.revised)
    assert kb.is_consistent(first.revised).all()


def test_a_contradiction_is_found_by_the_search_too():
    h = ld.Hierarchy.from_dict({"a": ["b", "c"]})
    with pytest.raises(ld.ContradictionError, match=r"C: b -> a; r1; r2"), pytest.warns(ld.TangledRulesWarning):
        compile_knowledge(ld.KnowledgeBase(h, "C", ["r1: forall x: b(x)", "r2: forall x: ~a(x)"]), work=1)


def test_tangled_rules_warn_and_do_not_hang():
    rng = random.Random(2)
    h = ld.Hierarchy.load("coco")
    names = [n.replace(" ", "_") for n in h.names]
    rules = ["forall x: {}(x) & {}(x) -> {}(x)".format(*rng.sample(names, 3)) for _ in range(16)]
    with pytest.warns(ld.TangledRulesWarning, match="16 user rules tie"):
        diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, "DE", rules), budget=4)
    result = diagnoser(torch.rand(2, len(h), generator=torch.Generator().manual_seed(0)))
    assert diagnoser.kb.is_consistent(result.revised).all()
    assert not result.exhaustive.all()


def test_exhaustive_is_told_even_where_branching_is_hopeless():
    """One minimal diagnosis, but thousands of labels on the way to it."""
    k = 12
    h = ld.Hierarchy.from_dict([f"{side}{i}" for i in range(k) for side in "xy"])
    rules = [text for i in range(k) for text in (f"forall x: x{i}(x) | y{i}(x)", f"forall x: x{i}(x) -> y{i}(x)")]
    rules.append("forall x: " + " | ".join(f"y{i}(x)" for i in range(k)))
    with pytest.warns(ld.TangledRulesWarning):
        program = compile_knowledge(ld.KnowledgeBase(h, "", rules), work=0)
    found, total = program.enumerate([False] * 2 * k, [-1.0] * 2 * k, 1)
    assert total == 1
    assert [mask for _, mask in found] == [sum(1 << h.index(f"y{i}") for i in range(k))]


def test_too_many_to_list_is_refused_by_a_search_too():
    h = ld.Hierarchy.from_dict({f"g{i}": [f"g{i}_{j}" for j in range(6)] for i in range(8)})
    with pytest.warns(ld.TangledRulesWarning):
        program = compile_knowledge(ld.KnowledgeBase(h, "E"), work=1)
    with pytest.raises(ld.LogicDiagError, match="minimal diagnoses; pass budget=N"):
        program.enumerate([True] * len(h), [0.0] * len(h), None)
