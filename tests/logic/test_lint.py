import itertools
import random

from pysat.solvers import Solver

import logicdiag as ld
from logicdiag.logic.clauses import family_clauses
from logicdiag.logic.lint import smallest_contradiction
from tests.cases import Oracle, all_models, random_knowledge

H = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": ["car"], "sky": None})


def findings(rules, families="CDE"):
    return {(f.kind, f.names) for f in ld.KnowledgeBase(H, families, rules).lint()}


def contradict(rules):
    with Solver(name="g4", bootstrap_with=[clause for rule in rules for clause in rule]) as solver:
        return not solver.solve()


def test_nothing_to_say():
    assert findings(["forall x: cat(x) | sky(x) | car(x) | bird(x)"], "CE") == set()


def test_contradiction_names_a_smallest_set():
    rules = [
        "a: forall x: bird(x) | cat(x)",
        "b: forall x: ~bird(x)",
        "c: forall x: ~cat(x)",
        "d: forall x: sky(x)",
        "e: forall x: ~sky(x)",
    ]
    assert findings(rules) == {("contradiction", ("d", "e"))}
    [finding] = ld.KnowledgeBase(H, "CDE", rules).lint()
    assert finding.is_error
    assert str(finding) == "error: these rules contradict each other: d; e"


def test_smallest_contradiction_is_smallest():
    """No smaller set of rules, families included, contradicts itself."""
    rng = random.Random(0)
    seen = 0
    while seen < 12:
        kb = random_knowledge(rng, most=4, rules=4)
        if all_models(kb):
            assert smallest_contradiction(kb) is None
            continue
        found = smallest_contradiction(kb)
        # every rule as clauses: the families one clause each, a user's rule by its truth table
        families = [[clause] for clause in Oracle(ld.KnowledgeBase(kb.hierarchy, kb.families, root=kb.root)).clauses]
        users = [Oracle(ld.KnowledgeBase(kb.hierarchy, "", [rule])).clauses for rule in kb.rules]
        assert any(contradict(some) for some in itertools.combinations(families + users, len(found)))
        for size in range(len(found)):
            assert not any(contradict(some) for some in itertools.combinations(families + users, size))
        named = dict(family_clauses(kb))
        own = [ld.KnowledgeBase(kb.hierarchy, "", [rule]) for rule in kb.rules if rule.name in found]
        literal = {name: i for i, name in enumerate(kb.hierarchy.names, 1)}
        chosen = [[[literal[n] if v else -literal[n] for n, v in named[text]]] for text in found if text in named]
        assert len(chosen) + len(own) == len(found)
        assert contradict(chosen + [Oracle(one).clauses for one in own])
        assert len(set(found)) == len(found)
        seen += 1


def test_classes_that_can_never_be_true():
    assert findings(["r: forall x: bird(x) -> car(x)"]) == {("never_true", ("bird",))}
    [finding] = ld.KnowledgeBase(H, "CDE", ["r: forall x: bird(x) -> car(x)"]).lint()
    assert "C: bird -> animal" in finding.message
    assert "r" in finding.message
    assert str(finding).startswith("warning: class 'bird' can never be true")


def test_redundant_rules():
    found = findings(["r: forall x: bird(x) -> ~car(x)", "t: forall x: sky(x) | ~sky(x)"])
    assert found == {("redundant", ("r",)), ("redundant", ("t",))}
    texts = [str(f) for f in ld.KnowledgeBase(H, "CDE", ["t: forall x: sky(x) | ~sky(x)"]).lint()]
    assert texts == ["warning: rule 't' follows already: it is always true"]


def test_exists_counts_in_truth_degrees_only():
    assert findings(["r: exists x: bird(x)"]) == {("truth_only", ("r",))}


def test_lint_agrees_with_all_models():
    rng = random.Random(3)
    for _ in range(80):
        kb = random_knowledge(rng, most=6)
        models = all_models(kb)
        found = kb.lint()
        assert any(f.kind == "contradiction" for f in found) == (not models)
        if models:
            never = {name for i, name in enumerate(kb.hierarchy.names) if not any(m[i] for m in models)}
            assert {f.names[0] for f in found if f.kind == "never_true"} == never
            redundant = set()
            for rule in kb.rules:
                others = [r for r in kb.rules if r is not rule]
                without = ld.KnowledgeBase(kb.hierarchy, kb.families, others, kb.root)
                if all_models(without) == models:
                    redundant.add(rule.name)
            assert {f.names[0] for f in found if f.kind == "redundant"} == redundant


def test_a_rule_whose_negation_is_long():
    h = ld.Hierarchy.from_dict([f"n{i}" for i in range(32)])
    body = " & ".join(f"(n{i}(x) | n{i + 1}(x))" for i in range(0, 32, 2))
    assert ld.KnowledgeBase(h, "", [f"r: forall x: {body}"]).lint() == []
    found = ld.KnowledgeBase(h, "", [f"r: forall x: {body}", "s: forall x: n0(x) | n1(x)"]).lint()
    assert [f.names for f in found] == [("s",)]
