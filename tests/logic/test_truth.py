"""Truth degrees against plain loops, and the likelihood that follows from them."""

import math
import random

import pytest
import torch

import logicdiag as ld
from logicdiag.kernels import reference
from tests.cases import random_hierarchy, random_knowledge


@pytest.mark.parametrize("q", [1, 2, 5, 7.5])
def test_derived_formulas_equal_the_loops(q):
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(15):
        h = random_hierarchy(rng, 14)
        probs = torch.rand(9, len(h), dtype=torch.float64)
        degrees = ld.Diagnoser(ld.KnowledgeBase(h), q=q).truth_degrees(probs)
        want = reference.truth_degrees(probs.tolist(), h.parents, q)
        for family in "CDE":
            assert torch.allclose(degrees[family], torch.tensor(want[family], dtype=torch.float64), rtol=0, atol=1e-9)


def test_on_a_real_hierarchy_in_blocks():
    h = ld.Hierarchy.load("coco")
    probs = torch.rand(2, len(h), 33, 45, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pixels = probs.movedim(1, -1).reshape(-1, len(h)).tolist()
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(h))
    want = reference.truth_degrees(pixels, h.parents, 5)
    for family, degrees in diagnoser.truth_degrees(probs).items():
        assert torch.allclose(degrees, torch.tensor(want[family], dtype=torch.float64), rtol=0, atol=1e-9)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)):
        for family, degrees in diagnoser.truth_degrees(probs.to(dtype)).items():
            assert torch.allclose(degrees, torch.tensor(want[family], dtype=torch.float64), atol=tolerance)


CONNECTIVES = {
    "paper": (lambda a, b: a * b, max, lambda a, b: 1 - a + a * b),
    "product": (lambda a, b: a * b, lambda a, b: a + b - a * b, lambda a, b: 1 - a + a * b),
    "godel": (min, max, lambda a, b: max(1 - a, b)),
    "lukasiewicz": (lambda a, b: max(0, a + b - 1), lambda a, b: min(1, a + b), lambda a, b: min(1, 1 - a + b)),
}


def forall(values, quantifier, q):
    if quantifier == "min":
        return min(values)
    power = q if quantifier == "pmean_error" else 1
    return 1 - (sum((1 - v) ** power for v in values) / len(values)) ** (1 / power)


@pytest.mark.parametrize("quantifier", ["pmean_error", "mean", "min"])
@pytest.mark.parametrize("name", list(CONNECTIVES))
def test_connectives_and_quantifiers_by_name(name, quantifier):
    conjoin, disjoin, imply = CONNECTIVES[name]
    h = ld.Hierarchy.from_dict({"a": ["b", "c", "d"], "e": None})
    rules = [
        "r: forall x: b(x) & ~c(x) -> d(x) | e(x)",
        "s: exists x: b(x)",
        "t: (forall x: a(x)) <-> (exists x: e(x))",
    ]
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, "CDE", rules), q=3, connectives=name, quantifier=quantifier)
    probs = torch.rand(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = [dict(zip("abcde", row, strict=True)) for row in probs.tolist()]
    degrees = diagnoser.truth_degrees(probs)

    def every(rule):
        return forall([rule(p) for p in rows], quantifier, 3)

    def some(rule):
        return 1 - forall([1 - rule(p) for p in rows], quantifier, 3)

    assert degrees["C"].tolist() == pytest.approx(
        [1, *(every(lambda p, k=k: imply(p[k], p["a"])) for k in "bcd"), 1], abs=1e-12
    )
    in_a = every(lambda p: imply(p["a"], disjoin(disjoin(p["b"], p["c"]), p["d"])))
    assert degrees["D"].tolist() == pytest.approx([in_a, 1, 1, 1, 1], abs=1e-12)
    pairs = {(o, s): every(lambda p, o=o, s=s: imply(p[o], 1 - p[s])) for o in "bcd" for s in "bcd" if o != s}
    siblings = [1 - sum(1 - pairs[o, s] for s in "bcd" if s != o) / 2 for o in "bcd"]
    top = every(lambda p: imply(p["a"], 1 - p["e"]))
    assert degrees["E"].tolist() == pytest.approx([top, *siblings, top], abs=1e-12)
    r = every(lambda p: imply(conjoin(p["b"], 1 - p["c"]), disjoin(p["d"], p["e"])))
    assert degrees["r"].tolist() == pytest.approx([1, r, r, r, r], abs=1e-12)
    s = some(lambda p: p["b"])
    assert degrees["s"].tolist() == pytest.approx([1, s, 1, 1, 1], abs=1e-12)
    all_a, some_e = every(lambda p: p["a"]), some(lambda p: p["e"])
    t = conjoin(imply(all_a, some_e), imply(some_e, all_a))
    assert degrees["t"].tolist() == pytest.approx([t, 1, 1, 1, t], abs=1e-12)


def test_unknown_names_are_refused():
    kb = ld.KnowledgeBase(ld.Hierarchy.load("voc2012"))
    with pytest.raises(ld.OptionError, match="connectives is 'goedel', expected one of paper.*did you mean 'godel'"):
        ld.Diagnoser(kb, connectives="goedel")
    with pytest.raises(ld.OptionError, match="quantifier is 'max'"):
        ld.Diagnoser(kb, quantifier="max")
    with pytest.raises(ld.OptionError, match="q is 0.5, expected a number from 1 to 64"):
        ld.Diagnoser(kb, q=0.5)
    with pytest.raises(ld.OptionError, match="strategy is 'sample', expected one of uniform.*did you mean 'sampling'"):
        ld.Diagnoser(kb, strategy="sample")
    with pytest.raises(ld.OptionError, match="budget is 0"):
        ld.Diagnoser(kb, budget=0)


def test_conflict_degree_is_one_minus_the_mean():
    h = ld.Hierarchy.from_dict({"a": ["b", "c"]})
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, "CE", ["r: forall x: b(x)"]))
    degrees = diagnoser.truth_degrees(torch.tensor([[0.9, 0.8, 0.3]], dtype=torch.float64))
    conflict = diagnoser.conflict_degree(degrees)
    assert conflict[1] == pytest.approx(1 - (degrees["C"][1] + degrees["E"][1] + degrees["r"][1]) / 3)
    assert degrees["r"].tolist() == pytest.approx([1, 0.8, 1])
    assert diagnoser.conflict_degree({}).tolist() == [0, 0, 0]


def test_probabilities_of_diagnoses_equal_the_loops():
    """Eq. fail and likelihood, with c(o) measured on a batch."""
    rng = random.Random(4)
    for _ in range(60):
        kb = random_knowledge(rng, rules=1)
        n = len(kb.hierarchy)
        batch = torch.rand(5, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        for strategy in ("uniform", "predictive", "sampling"):
            try:
                diagnoser = ld.Diagnoser(kb, strategy=strategy)
            except ld.ContradictionError:
                continue
            degrees = diagnoser.truth_degrees(batch)
            found = diagnoser.diagnoses(batch[0], degrees=degrees)
            conflict = diagnoser.conflict_degree(degrees).tolist() if strategy == "sampling" else [0.0] * n
            normal = [reference.normality(p, c, 1e-6) for p, c in zip(batch[0].tolist(), conflict, strict=True)]
            if strategy == "uniform":
                normal = [0.5] * n
            index = kb.hierarchy.index
            want = reference.posterior([frozenset(map(index, d.flips)) for d in found], normal)
            for d in found:
                assert d.probability == pytest.approx(want[frozenset(map(index, d.flips))], abs=1e-9)


def test_blocks_and_processes_add_up():
    h = ld.Hierarchy.load("voc2012")
    rules = ["r: exists x: cat(x)", "s: forall x: cat(x) -> dog(x)"]
    probs = torch.rand(100, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for quantifier in ("pmean_error", "min"):
        diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, rules=rules), quantifier=quantifier)
        whole = diagnoser.truth_degrees(probs)
        halves = [diagnoser.meter(), diagnoser.meter()]
        diagnoser.measure(halves[0], probs[:30])
        diagnoser.measure(halves[1], probs[30:])
        others: list[torch.Tensor] = []
        halves[1].reduce(lambda total, others=others: others.append(total.clone()))
        pending = iter(others)

        def combine(total, quantifier=quantifier, pending=pending, pixels=halves[0].pixels):
            other = next(pending)
            is_sum = quantifier != "min" or total is pixels
            total.copy_(total + other if is_sum else torch.maximum(total, other))

        halves[0].reduce(combine)
        for name, values in halves[0].degrees().items():
            assert torch.allclose(values, whole[name], atol=1e-12)


def test_no_pixels_means_no_conflict():
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(ld.Hierarchy.load("voc2012"), rules=["r: exists x: cat(x)"]))
    degrees = diagnoser.truth_degrees(torch.empty(0, 24))
    assert all((degrees[family] == 1).all() for family in "CDE")
    assert math.isclose(degrees["r"][diagnoser.kb.hierarchy.index("cat")], 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("q", [5, 16, 64])
def test_large_q_does_not_make_broken_rules_true(q, dtype):
    h = ld.Hierarchy.from_dict({"a": ["b", "c"]})
    degrees = ld.Diagnoser(ld.KnowledgeBase(h), q=q).truth_degrees(torch.full((4, 3), 0.6, dtype=dtype))
    assert degrees["C"].tolist() == pytest.approx([1, 0.76, 0.76], abs=1e-6)
    assert degrees["D"].tolist() == pytest.approx([0.76, 1, 1], abs=1e-6)
    assert degrees["E"].tolist() == pytest.approx([1, 0.64, 0.64], abs=1e-6)
