import random

import pytest
import torch

import logicdiag as ld
from logicdiag.kernels import reference
from tests.cases import all_models, random_knowledge


def test_consistency_equals_the_definition():
    rng = random.Random(0)
    for _ in range(150):
        kb = random_knowledge(rng, most=7)
        n = len(kb.hierarchy)
        labels = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, n)
        consistent = {tuple(row) for row in labels[kb.is_consistent(labels)].tolist()}
        assert consistent == set(all_models(kb))


def test_models_of_all_families_are_the_paths():
    """Fact 2."""
    rng = random.Random(1)
    for _ in range(50):
        kb = random_knowledge(rng, rules=0, families="CDE")
        h = kb.hierarchy
        paths = {tuple(i in h.path_indices(leaf) for i in range(len(h))) for leaf in h.leaf_indices}
        nothing = {(False,) * len(h)} if kb.root == "free" else set()
        assert set(all_models(kb)) == paths | nothing


def test_shape_is_kept():
    kb = ld.KnowledgeBase(ld.Hierarchy.load("voc2012"))
    assert kb.is_consistent(torch.zeros(2, 3, 5, 24, dtype=torch.bool)).shape == (2, 3, 5)
    assert kb.is_consistent(torch.zeros(24, dtype=torch.bool)).shape == ()
    with pytest.raises(ld.ProbabilityError, match="labels have 23 channels.*24 concepts"):
        kb.is_consistent(torch.zeros(2, 23, dtype=torch.bool))
    with pytest.raises(ld.ProbabilityError, match=r"torch.float32, expected torch.bool"):
        kb.is_consistent(torch.zeros(2, 24))


def test_broken_rules_are_counted_by_text():
    h = ld.Hierarchy.from_dict({"animal": ["bird", "hot dog"], "sky": None})
    kb = ld.KnowledgeBase(h, rules=["r: forall x: bird(x) -> sky(x)"])
    labels = torch.tensor([[False, True, True, False], [True, False, False, True], [False, False, False, False]])
    assert kb.count_broken(labels) == {
        "D: root -> animal | sky": 2,
        "E: animal -> ~sky": 1,
        "C: bird -> animal": 1,
        "C: hot_dog -> animal": 1,
        "D: animal -> bird | hot_dog": 1,
        "E: bird -> ~hot_dog": 1,
        "r": 1,
    }


def test_something_is_broken_exactly_where_labels_are_inconsistent():
    rng = random.Random(2)
    torch.manual_seed(0)
    for _ in range(60):
        kb = random_knowledge(rng)
        for label in torch.rand(10, len(kb.hierarchy)) > 0.5:
            assert bool(kb.count_broken(label[None])) != bool(kb.is_consistent(label))
            assert kb.broken_by(label.tolist()) == list(kb.count_broken(label[None]))


def test_options_are_checked():
    h = ld.Hierarchy.load("voc2012")
    assert ld.KnowledgeBase(h, "edc").families == "CDE"
    with pytest.raises(ld.OptionError, match=r"families is 'CX': 'X' is not one of C \(composition\)"):
        ld.KnowledgeBase(h, "CX")
    with pytest.raises(
        ld.OptionError, match="root is 'asserte', expected one of asserted, free .did you mean 'asserted'"
    ):
        ld.KnowledgeBase(h, root="asserte")
    with pytest.raises(ld.LogicDiagError, match="rule 1: a rule is named 'C', a name that stands for a family"):
        ld.KnowledgeBase(h, rules=["C: forall x: cat(x)"])
    with pytest.raises(ld.LogicDiagError, match="a rule is named 'C: cat -> animal', as the rules of family C are"):
        ld.KnowledgeBase(h, rules=["'C: cat -> animal': forall x: cat(x)"])
    with pytest.raises(ld.RuleError, match="unknown class 'cta' .did you mean 'cat'"):
        ld.KnowledgeBase(h, rules=["forall x: cta(x)"])


def test_a_hierarchy_is_wanted():
    with pytest.raises(ld.OptionError, match="hierarchy is a str, expected a Hierarchy: use Hierarchy.load"):
        ld.KnowledgeBase("voc2012")


def test_rules_from_text_file_and_formula(tmp_path):
    h = ld.Hierarchy.load("voc2012")
    text = "no_cats: forall x: ~cat(x)\nforall x: dog(x) -> animal(x)\n"
    path = tmp_path / "my.rules"
    path.write_text(text, "utf-8")
    for rules in (text, path, text.splitlines(), ld.parse(text), [rule.formula for rule in ld.parse(text)]):
        kb = ld.KnowledgeBase(h, rules=rules)
        assert [str(rule.formula) for rule in kb.rules] == ["forall x: ~cat(x)", "forall x: dog(x) -> animal(x)"]
    with pytest.raises(ld.LogicDiagError, match="nothing.rules: the rule file cannot be read: No such file"):
        ld.KnowledgeBase(h, rules=tmp_path / "nothing.rules")


def test_reference_helpers():
    parents = [-1, 0, 0, -1]
    assert reference.children(parents, 0) == [1, 2]
    assert reference.siblings(parents, 1) == [2]
