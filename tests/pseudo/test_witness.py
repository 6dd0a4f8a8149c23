"""What a witness says multiplies the teacher's odds among siblings, and nothing else."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import logicdiag as ld
from logicdiag.logic.leaves import Leaves
from logicdiag.pseudo.build import PsiSetting, build_knowledge, build_psi
from logicdiag.pseudo.config import PsiConfig
from logicdiag.pseudo.target import Prediction
from logicdiag.pseudo.witness import Weighing
from tests.cases import random_hierarchy

H = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": {"car": ["taxi", "racer"], "bus": None}, "sky": None})


def heard_of(h, **weights):
    row = torch.zeros(len(h), dtype=torch.float64)
    for name, weight in weights.items():
        row[h.index(name)] = math.log(weight)
    return row


def weighed_slowly(h, head, odds, weights):
    """One pixel, by the definition, from the top down: siblings that are weighed share what they had together of the
    whole of a flat head, or what their parent has (less what siblings have that are not weighed); and the odds of all
    that is below a concept go with it. `weights` by concept; `odds` by channel.
    """
    names = h.names if head == "hierarchical" else h.leaves
    out = dict(zip(names, odds, strict=True))

    def below(name):
        return [n for n in names if name in h.path(n)]

    def mass(name):
        return out[name] if head == "hierarchical" else sum(out[leaf] for leaf in below(name))

    for parent in dict.fromkeys(h.parent(name) for name in h.names if name in weights):
        group = [name for name in weights if h.parent(name) == parent]
        if all(weights[name] == 1 for name in group):
            continue
        share = {name: mass(name) * weights[name] for name in group}
        share = {name: value / sum(share.values()) for name, value in share.items()}
        if head == "flat":
            times = {name: share[name] * sum(map(mass, group)) / mass(name) for name in group}
        else:
            theirs = sum(map(mass, group)) / sum(mass(n) for n in h.names if h.parent(n) == parent)
            theirs *= 1 if parent is None else out[parent] / (1 + out[parent])
            likely = {name: min(theirs * share[name], 1 - 1e-6) for name in group}
            times = {name: likely[name] / (1 - likely[name]) / mass(name) for name in group}
        for name in group:
            for n in below(name):
                out[n] *= times[name]
    return [out[name] for name in names]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["hierarchical", "flat"]))
def test_the_odds_of_siblings_are_multiplied(seed, head):
    rng = random.Random(seed)
    h = random_hierarchy(rng, 9, 2)
    concepts = [n for n in h.names if rng.random() < 0.7 and h.siblings(n)]
    concepts = [n for n in concepts if any(h.parent(o) == h.parent(n) for o in concepts if o != n)]
    if not concepts:
        return
    weights = {name: rng.choice([1e-6, 0.1, 1.0, 7.0]) for name in concepts}
    g = torch.Generator().manual_seed(seed)
    channels = len(h) if head == "hierarchical" else len(h.leaves)
    logits = 3 * torch.randn(2, channels, 2, 2, generator=g, dtype=torch.float64)
    heard = torch.stack([heard_of(h, **weights), heard_of(h)])
    found = Weighing(h, concepts, head).double()(logits, heard)
    torch.testing.assert_close(found[1], logits[1])  # of this image nothing is said
    for y, x in ((0, 0), (1, 0)):
        expected = weighed_slowly(h, head, logits[0, :, y, x].exp().tolist(), weights)
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found[0, :, y, x].exp(), expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("head", ["hierarchical", "flat"])
def test_a_concept_is_as_likely_as_before(head):
    logits = torch.randn(1, len(H) if head == "hierarchical" else len(H.leaves), 4, 4)
    heard = heard_of(H, bird=0.01, cat=1.0, taxi=5.0, racer=1.0)[None].float()
    found = Weighing(H, ["bird", "cat", "taxi", "racer"], head)(logits, heard)
    if head == "hierarchical":
        kept = [H.index(name) for name in ("animal", "vehicle", "car", "bus", "sky")]
        torch.testing.assert_close(found[:, kept], logits[:, kept])
        return
    under = Leaves(H).under
    before, after = (torch.einsum("nl,blhw->bnhw", under, z.softmax(1)) for z in (logits, found))
    for name in ("animal", "vehicle", "car", "bus", "sky"):
        torch.testing.assert_close(after[:, H.index(name)], before[:, H.index(name)])
    assert (after[:, H.index("cat")] > before[:, H.index("cat")]).all()


def test_siblings_share_what_their_parent_has():
    """However low their own outputs are: one of them holds, if their parent does."""
    logits = torch.full((1, len(H), 1, 1), -6.0)
    logits[:, H.index("animal")] = 3.0
    likely = Weighing(H, ["bird", "cat"], "hierarchical")(
        logits, heard_of(H, bird=3.0, cat=1.0)[None].float()
    ).sigmoid()
    animal, bird, cat = (float(likely[0, H.index(name)]) for name in ("animal", "bird", "cat"))
    assert animal == pytest.approx(torch.tensor(3.0).sigmoid().item())
    assert (bird, cat) == pytest.approx((0.75 * animal, 0.25 * animal))


def test_of_a_sibling_that_is_not_weighed_nothing_is_said():
    h = ld.Hierarchy.from_dict({"pet": ["cat", "dog", "hamster"], "sky": None})
    logits = torch.tensor([4.0, 0.0, 0.0, math.log(2), -5.0]).view(1, -1, 1, 1)  # a hamster has half of the odds
    found = Weighing(h, ["cat", "dog"], "hierarchical")(logits, heard_of(h, cat=9.0, dog=1.0)[None].float())
    pet, cat, dog, hamster, _ = found.sigmoid().flatten().tolist()
    assert (cat, dog) == pytest.approx((0.45 * pet, 0.05 * pet))
    assert hamster == pytest.approx(2 / 3)


def test_by_the_tree_the_odds_among_siblings_are_the_product():
    """Whatever the parent is, and to the digit; what other concepts are among their siblings stays."""
    h = ld.Hierarchy.from_dict({"pet": {"cat": ["kitten", "tom"], "dog": None, "hamster": None}, "sky": None})
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, len(h), 5, 5, generator=g)
    heard = heard_of(h, cat=9.0, dog=1.0)[None].float()
    leaves = Leaves(h, "tree")
    before, after = (leaves.probs(z) for z in (logits, Weighing(h, ["cat", "dog"], "tree")(logits, heard)))

    def of(probs, name, other):
        return probs[:, h.index(name)] / probs[:, h.index(other)]

    torch.testing.assert_close(of(after, "cat", "dog"), 9 * of(before, "cat", "dog"), rtol=1e-4, atol=0)
    for name, other in (("pet", "sky"), ("hamster", "pet"), ("kitten", "tom")):
        torch.testing.assert_close(of(after, name, other), of(before, name, other), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["diagnosis", "threshold"])
def test_levels_by_the_tree_are_as_sure_as_the_product(name):
    """Three to one among even siblings of a sure parent is 0.75, and no more."""
    logits = torch.full((1, len(H), 2, 2), -6.0)
    for concept, logit in {"animal": 8.0, "bird": -1.0, "cat": -1.0}.items():
        logits[:, H.index(concept)] = logit
    heard = heard_of(H, bird=3.0, cat=1.0)[None].float()
    for least, expected in ((0.7, "bird"), (0.8, "animal")):
        target = asked(psi(name, decision="tree", levels=least), logits, heard)
        assert (target.sure == H.index(expected)).all(), least
        assert (target.leaf == H.leaves.index("bird")).all()
        alone = asked(psi(name, decision="tree", levels=least), logits, None)
        assert (alone.sure == H.index("animal")).all()


def psi(name, head="hierarchical", witness=("bird", "cat"), decision="leaf", **options):
    config = PsiConfig(name=name, **options)
    return build_psi(PsiSetting(config, build_knowledge(config, H), head, decision=decision, witness=witness))


def asked(made, logits, heard):
    valid = torch.ones_like(logits[:, 0], dtype=torch.bool)
    plan = {key: torch.as_tensor(value) for key, value in made.plan(0, range(len(logits))).items()}
    return made(Prediction(logits, valid, plan, heard), Prediction(logits[:0], valid[:0]))[0]


@pytest.mark.parametrize("name", ["diagnosis", "threshold"])
@pytest.mark.parametrize("said", ["bird", "cat"])
def test_a_pixel_that_is_in_doubt_between_siblings_is_as_the_witness_says(name, said):
    """Sure of an animal, but not of which: without a witness only `animal` is learned."""
    logits = torch.full((1, len(H), 3, 3), -9.0)
    for concept, logit in {"animal": 9.0, "bird": 1.0, "cat": 0.9}.items():
        logits[:, H.index(concept)] = logit
    weights = {"bird": 1e-4, "cat": 1e-4, said: 1.0}
    made = psi(name, levels=0.95)
    alone, told = asked(made, logits, None), asked(made, logits, heard_of(H, **weights)[None].float())
    assert (alone.sure == H.index("animal")).all()
    assert (told.sure == H.index(said)).all()
    assert (told.leaf == H.leaves.index(said)).all()


def test_timid_siblings_are_learned_because_they_share_what_their_parent_has():
    """Which in the flat head they do anyway."""
    logits = torch.full((1, len(H), 3, 3), -9.0)
    for concept, logit in {"animal": 9.0, "bird": -2.0, "cat": -2.1, "sky": -2.5}.items():
        logits[:, H.index(concept)] = logit
    heard = heard_of(H, bird=1e-4, cat=1.0)[None].float()
    made = psi("diagnosis", levels=0.95)
    alone, told = asked(made, logits, None), asked(made, logits, heard)
    assert (alone.weight == 0).all()
    assert (told.sure == H.index("cat")).all()
    assert (told.weight == 1).all()


def test_labels_are_paths_whatever_is_heard():
    g = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, len(H), 16, 16, generator=g)
    heard = torch.stack([heard_of(H, bird=1e-6, cat=1.0), heard_of(H, bird=1.0, cat=1e-6), heard_of(H)]).float()
    target = asked(psi("diagnosis", levels=0.0), logits, heard)
    labels = Leaves(H).under.T.bool()[target.leaf.long()]
    assert ld.KnowledgeBase(H).is_consistent(labels).all()
    silent = asked(psi("diagnosis", levels=0.0, witness=()), logits, None)
    assert torch.equal(target.leaf[2] == -1, silent.leaf[2] == -1)


def test_without_words_it_is_the_psi_itself():
    logits = torch.randn(2, len(H), 8, 8)
    for heard in (None, torch.zeros(2, len(H))):
        told, alone = asked(psi("diagnosis"), logits, heard), asked(psi("diagnosis", witness=()), logits, None)
        assert torch.equal(told.leaf, alone.leaf)
        assert torch.equal(told.weight, alone.weight)
