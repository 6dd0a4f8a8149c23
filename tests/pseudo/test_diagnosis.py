"""Psi by reasoning, against the Diagnoser called by hand."""

import pytest
import torch

import logicdiag as ld
from logicdiag.errors import ConfigError, LogicDiagError, OptionError
from logicdiag.logic.diagnosis import STRATEGIES
from logicdiag.plan import moved
from logicdiag.pseudo.build import PsiSetting, build_knowledge, build_psi
from logicdiag.pseudo.config import PsiConfig
from logicdiag.pseudo.diagnosis import Diagnosis
from logicdiag.pseudo.target import Prediction

H = ld.Hierarchy.from_dict({"animal": {"bird": ["owl", "wren"], "cat": None}, "sky": None, "vehicle": ["car", "bus"]})
N = len(H)


def prediction(seed, views=2, size=(5, 6), step=3, slots=None, invalid=0.3, drawn=0):
    g = torch.Generator().manual_seed(seed)
    logits = torch.rand(views, N, *size, generator=g).logit()
    valid = torch.rand(views, *size, generator=g) >= invalid
    return Prediction(logits, valid, planned(step, slots or range(views), drawn))


def planned(step, slots, seed=0):
    return moved(psi(seed).plan(step, slots), torch.device("cpu"))


def probs(p):
    return p.logits.sigmoid()


def psi(seed=0, reduce=None, **options):
    config = PsiConfig(**{"weight": "one", "levels": 0.0, **options})
    made = build_psi(PsiSetting(config, build_knowledge(config, H), "hierarchical", seed, reduce))
    assert isinstance(made, Diagnosis)
    return made


def labels_of(target):
    """One label per concept, whichever way the target says it."""
    if target.labels is not None:
        return target.labels
    out = torch.zeros(len(target.leaf), N, *target.leaf.shape[1:])
    for i, leaf in enumerate(H.leaves):
        for node in H.path(leaf):
            out[:, H.index(node)][target.leaf == i] = 1
    return out


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s != "soft"])
@pytest.mark.parametrize(
    "options", [{}, {"families": "CD"}, {"families": "C"}, {"root": "free"}, {"rules": ["forall x: ~owl(x)"]}]
)
def test_targets_satisfy_the_knowledge_base(strategy, options):
    found = psi(strategy=strategy, **options)
    kb = build_knowledge(PsiConfig(**options), H)
    unlabeled = prediction(0)
    target, statistics = found(unlabeled, prediction(1))
    single = found.single_leaf
    assert single == (options.get("families", "CDE") == "CDE" and "root" not in options)
    assert (target.leaf is not None, target.labels is not None) == (single, not single)
    assert kb.is_consistent(labels_of(target).bool().movedim(1, -1)[unlabeled.valid]).all()
    assert torch.equal(target.weight, unlabeled.valid.float())
    conflict, pixels = statistics["conflict"]
    observed = (probs(unlabeled) > 0.5).movedim(1, -1)[unlabeled.valid]
    assert int(conflict) == int((~kb.is_consistent(observed)).sum()) > 0
    assert int(pixels) == int(unlabeled.valid.sum())
    if "rules" in options:
        assert not labels_of(target)[:, H.index("owl")][unlabeled.valid].any()


@pytest.mark.parametrize("quantifier", ["pmean_error", "mean", "min"])
def test_truth_degrees_are_those_of_all_labelled_and_unlabelled_pixels(quantifier):
    found = psi(strategy="greedy", weight="posterior", quantifier=quantifier)
    unlabeled, labeled = prediction(0), prediction(1, views=3)
    for p in (unlabeled, labeled):
        p.logits.movedim(1, -1)[~p.valid] = torch.nan  # padded and ignored pixels are not even looked at
    target, _ = found(unlabeled, labeled)
    columns = [probs(p).movedim(1, -1)[p.valid] for p in (unlabeled, labeled)]
    degrees = found.diagnoser.truth_degrees(torch.cat(columns))
    by_hand = found.diagnoser(columns[0], degrees=degrees)
    assert torch.equal(target.leaf[unlabeled.valid], by_hand.leaf)
    torch.testing.assert_close(target.weight[unlabeled.valid], by_hand.log_prob.exp())
    alone = found.diagnoser(columns[0])
    assert not torch.allclose(target.weight[unlabeled.valid], alone.log_prob.exp())


@pytest.mark.parametrize("families", ["CDE", "CD"])
@pytest.mark.parametrize("strategy", ["uniform", "predictive", "sampling", "greedy", "soft"])
def test_how_the_batch_is_cut_does_not_matter(strategy, families):
    """Two processes: each sums its own pixels up, and gets what is missing from the other."""
    found = psi(strategy=strategy, weight="posterior", families=families)
    unlabeled, labeled = prediction(0, views=4), prediction(1, views=4)
    whole, _ = found(unlabeled, labeled)
    halves = [
        [Prediction(p.logits[s], p.valid[s], {"seeds": p.plan["seeds"][s]}) for p in (unlabeled, labeled)]
        for s in (slice(0, 2), slice(2, 4))
    ]
    sums = []

    def collect(tensor):
        sums[-1].append(tensor.clone())

    found.reduce = collect
    for half in halves:
        sums.append([])
        found(*half)
    for i, half in enumerate(halves):
        others = iter([] if not sums[1 - i] else sums[1 - i])
        found.reduce = lambda tensor, others=others: tensor.add_(next(others))
        part, _ = found(*half)
        rows = slice(2 * i, 2 * i + 2)
        if not found.single_leaf:
            torch.testing.assert_close(part.labels, whole.labels[rows])
        else:
            assert torch.equal(part.leaf, whole.leaf[rows])
        torch.testing.assert_close(part.weight, whole.weight[rows])
    assert bool(sums[0]) == (strategy not in ("uniform", "predictive"))


def test_draws_are_keyed_by_seed_step_and_slot():
    def leaf(seed=0, step=3, slots=(0, 1)):
        return psi()(prediction(0, step=step, slots=slots, invalid=0, drawn=seed), prediction(1))[0].leaf

    first = leaf()
    assert torch.equal(first, leaf())
    assert torch.equal(first[0], leaf(slots=(0, 7))[0])
    for other in (leaf(seed=1), leaf(step=4)):
        assert not torch.equal(first, other)
    same = prediction(0, views=1, invalid=0)
    twice = Prediction(same.logits.repeat(2, 1, 1, 1), same.valid.repeat(2, 1, 1), planned(3, (0, 1)))
    drawn = psi()(twice, same)[0].leaf
    assert not torch.equal(drawn[0], drawn[1])


def test_soft_gives_expected_labels():
    unlabeled, labeled = prediction(0), prediction(1)
    found = psi(strategy="soft")
    target, _ = found(unlabeled, labeled)
    assert target.leaf is None
    degrees = found._degrees(*((probs(p), p.valid) for p in (unlabeled, labeled)))
    by_hand = found.diagnoser(probs(unlabeled), 1, unlabeled.valid, None, degrees)
    assert torch.equal(target.labels, by_hand.expected)
    inside = target.labels.movedim(1, -1)[unlabeled.valid]
    assert ((inside > 0.01) & (inside < 0.99)).any()
    torch.testing.assert_close(inside[:, list(H.leaf_indices)].sum(1), torch.ones(len(inside)))


def test_weights():
    unlabeled, labeled = prediction(0), prediction(1)
    one, posterior, likelihood = (
        psi(strategy="greedy", weight=weight)(unlabeled, labeled) for weight in ("one", "posterior", "likelihood")
    )
    assert torch.equal(one[0].weight, unlabeled.valid.float())
    assert torch.equal(one[0].leaf, likelihood[0].leaf)
    for target, statistics in (posterior, likelihood):
        assert not target.weight[~unlabeled.valid].any()
        inside = target.weight[unlabeled.valid]
        assert ((inside > 0) & (inside <= 1)).all()
        part, whole = statistics["counted"]
        torch.testing.assert_close(part / whole, inside.mean())
    revised = labels_of(one[0]).bool()
    together = torch.where(revised, probs(unlabeled), 1 - probs(unlabeled)).prod(1) * unlabeled.valid
    torch.testing.assert_close(likelihood[0].weight, together)
    assert posterior[0].weight[unlabeled.valid].std() > 0.05


def test_a_consistent_and_sure_prediction_counts_fully():
    sure = torch.full((1, N, 1, 1), 0.01)
    for node in H.path("wren"):
        sure[0, H.index(node)] = 0.99
    p = Prediction(sure.logit(), torch.ones(1, 1, 1, dtype=torch.bool), planned(0, (0,)))
    target, statistics = psi(weight="likelihood")(p, prediction(1))
    assert H.leaves[int(target.leaf)] == "wren"
    assert float(target.weight) == pytest.approx(0.99**N, rel=1e-5)
    assert int(statistics["conflict"][0]) == 0


def test_families_in_any_order_are_the_same():
    found = psi(families="EDC")
    assert found.single_leaf
    target, expected = (made(prediction(0), prediction(1))[0] for made in (found, psi()))
    assert torch.equal(target.leaf, expected.leaf)


def test_nothing_labelled_and_nothing_valid():
    nothing = Prediction(torch.zeros(0, N, 5, 6), torch.zeros(0, 5, 6, dtype=torch.bool))
    target, _ = psi()(prediction(0), nothing)
    assert torch.equal(target.weight, prediction(0).valid.float())
    padded = prediction(0, invalid=1.0)
    target, statistics = psi()(padded, padded)
    assert not target.weight.any()
    assert (target.leaf >= 0).all()
    assert [int(x) for x in statistics["counted"]] == [0, 0]


@pytest.mark.parametrize(
    ("options", "head", "error", "says"),
    [
        ({}, "flat", ConfigError, "model.head is flat and predicts leaves alone; set model.head to hierarchical"),
        ({"name": "treshold"}, "flat", OptionError, "psi.name is 'treshold'.*did you mean 'threshold'"),
        ({"weight": "posteror"}, "hierarchical", OptionError, "psi.weight is 'posteror'.*did you mean 'posterior'"),
        ({"strategy": "gredy"}, "hierarchical", OptionError, "did you mean 'greedy'"),
        ({"families": "CX"}, "hierarchical", LogicDiagError, "X"),
        ({"rules": ["forall x: owll(x)"]}, "hierarchical", LogicDiagError, "did you mean 'owl'"),
        ({"rules": "no/such.rules"}, "hierarchical", LogicDiagError, "no/such.rules"),
        ({"budget": 0}, "hierarchical", OptionError, "budget"),
        ({"levels": 0.9, "name": "threshold"}, "flat", ConfigError, "psi.levels is 0.9, but model.head is flat"),
        ({"levels": 0.9, "families": "CD"}, "hierarchical", ConfigError, "psi.levels is 0.9, which needs one leaf"),
        ({"levels": 0.9, "strategy": "soft"}, "hierarchical", ConfigError, "psi.levels is 0.9, which needs one leaf"),
        (
            {"levels": 0.9, "target": "concepts"},
            "hierarchical",
            ConfigError,
            "psi.levels is 0.9.*psi.target is concepts",
        ),
        (
            {"name": "threshold", "target": "concepts"},
            "flat",
            ConfigError,
            "psi.target is concepts, but model.head is flat",
        ),
        ({"target": "concept"}, "hierarchical", OptionError, "psi.target is 'concept'.*did you mean 'concepts'"),
        ({"levels": 1.5}, "hierarchical", ConfigError, "psi.levels is 1.5, expected a number from 0 to 1, or null"),
    ],
)
def test_wrong_options(options, head, error, says):
    config = PsiConfig(**options)
    with pytest.raises(error, match=says):
        build_psi(PsiSetting(config, build_knowledge(config, H), head))


def test_rule_files_are_sought_beside_the_configuration(tmp_path):
    (tmp_path / "my.rules").write_text("no_owl: forall x: ~owl(x)\n")
    kb = build_knowledge(PsiConfig(rules="my.rules"), H, tmp_path)
    assert [rule.name for rule in kb.rules] == ["no_owl"]
