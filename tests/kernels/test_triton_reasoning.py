"""Reasoning in fused kernels against PyTorch and the slow reference; in Triton's interpreter where there is no GPU."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag import Diagnoser, Hierarchy, KnowledgeBase
from logicdiag.errors import ProbabilityError
from logicdiag.kernels import fused
from logicdiag.kernels.paths import log_weights
from logicdiag.kernels.taken import FORBIDDEN
from logicdiag.logic.fast import Fast
from logicdiag.logic.repair import flip_log_odds
from tests.cases import random_hierarchy

triton_paths = pytest.importorskip("logicdiag.kernels.triton_paths", reason="needs Triton", exc_type=ImportError)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # as numpy interprets them
CAT_DOG = Hierarchy.from_dict(
    {"animal": ["cat", "dog"], "vehicle": {"car": None, "bike": ["moped", "cycle"]}, "sky": None}
)

TREES = (
    st.integers(0, 10**6).map(lambda seed: random_hierarchy(random.Random(seed), 14)).filter(lambda h: h.height <= 8)
)
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch):
    """The kernels are used on any device."""
    monkeypatch.setattr(fused, "fuses", lambda device: True)


def fast(kb: KnowledgeBase, **options) -> Fast:
    found = Diagnoser(kb, **options).fast(DEVICE)
    assert found is not None
    return found


def weights(kb: KnowledgeBase, probs: torch.Tensor, trust: torch.Tensor, strategy: str) -> torch.Tensor:
    """Log probabilities (candidates, b, pixels) of all minimal diagnoses, in PyTorch; about -1e30 for the others."""
    program = Diagnoser(kb, "greedy").program
    (paths,), order = program.parts, torch.tensor(program.layout.order)
    rows = probs.movedim(1, 0).flatten(1)[order].double()
    found = log_weights(paths, rows > 0.5, flip_log_odds(rows, trust.double()[order], strategy))
    return (found - torch.logsumexp(found, 0)).unflatten(1, (probs.shape[0], -1))


def predictions(n: int, b: int, pixels: int, seed: int) -> torch.Tensor:
    """Noise; among it whole and half certainties, and pixels where nothing was observed."""
    g = torch.Generator().manual_seed(seed)
    probs = torch.rand(b, n, pixels, generator=g)
    special = torch.rand(b, n, pixels, generator=g)
    probs = torch.where(special < 0.05, 0.0, torch.where(special > 0.95, 1.0, probs))
    probs[special.sub(0.5).abs() < 0.02] = 0.5
    probs[:, :, : pixels // 8] *= 0.5
    return probs


@settings(max_examples=25, deadline=None)
@given(TREES, st.integers(0, 10**6), st.sampled_from(["asserted", "free"]), st.sampled_from(sorted(DTYPES)))
def test_the_likeliest_and_its_probability_are_those_of_pytorch(h, seed, root, dtype):
    kb = KnowledgeBase(h, root=root)
    probs = predictions(len(h), 2, 37, seed).to(DTYPES[dtype])
    trust = torch.rand(len(h), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = weights(kb, probs, trust, "greedy")
    found = fast(kb, strategy="greedy").diagnose(probs.to(DEVICE), trust.to(DEVICE), None, None, log=True)
    chosen = expected.gather(0, found.leaf.cpu().long()[None])[0]
    torch.testing.assert_close(chosen, expected.amax(0), atol=2e-5, rtol=0)
    torch.testing.assert_close(found.prob.cpu().double(), chosen, atol=2e-5, rtol=0)
    consistent = kb.is_consistent((probs > 0.5).movedim(1, -1))
    assert torch.equal(found.conflict.cpu(), ~consistent)


@settings(max_examples=25, deadline=None)
@given(
    TREES,
    st.integers(0, 10**6),
    st.sampled_from(["asserted", "free"]),
    st.sampled_from(["uniform", "predictive", "sampling"]),
)
def test_what_is_drawn_is_minimal_and_its_probability_is_right(h, seed, root, strategy):
    kb = KnowledgeBase(h, root=root)
    probs = predictions(len(h), 2, 37, seed)
    trust = (
        torch.rand(len(h), generator=torch.Generator().manual_seed(seed))
        if strategy == "sampling"
        else torch.ones(len(h))
    )
    expected = weights(kb, probs, trust, strategy)
    seeds = torch.tensor([seed, seed + 1], device=DEVICE)
    kernels = fast(kb, strategy=strategy)
    found = kernels.diagnose(probs.to(DEVICE), trust.to(DEVICE), seeds, None, log=True)
    chosen = expected.gather(0, found.leaf.cpu().long()[None])[0]
    assert (chosen > -FORBIDDEN / 2).all()
    torch.testing.assert_close(found.prob.cpu().double(), chosen, atol=2e-5, rtol=0)
    _, revised = kernels.labels(probs.to(DEVICE), found.leaf)
    assert kb.is_consistent(revised.cpu().movedim(1, -1)).all()


@pytest.mark.parametrize(("name", "strategy"), [("coco", "sampling"), ("voc2012", "uniform")])
def test_draws_follow_the_likelihood(monkeypatch, name, strategy):
    if DEVICE.type == "cpu":
        monkeypatch.setattr(triton_paths, "BLOCK", 4096)  # the interpreter takes block after block
    h = Hierarchy.load(name)
    kb = KnowledgeBase(h)
    pixel = predictions(len(h), 1, 40, 3)[:, :, 20:21]
    trust = 0.5 + torch.rand(len(h), generator=torch.Generator().manual_seed(0)) / 2
    wanted = weights(kb, pixel, trust, strategy)[:, 0, 0].exp()
    draws = 20_000
    many = pixel.expand(2, -1, draws // 2).contiguous().to(DEVICE)
    seeds = torch.tensor([1, 2], device=DEVICE)
    found = fast(kb, strategy=strategy).diagnose(many, trust.to(DEVICE), seeds, None)
    seen = torch.bincount(found.leaf.cpu().flatten().int(), minlength=len(wanted)) / draws
    assert (seen[wanted < 1e-12] == 0).all()
    spread = (wanted * (1 - wanted) / draws).sqrt() + 1 / draws
    assert ((seen - wanted).abs() / spread).max() < 4.5
    assert (wanted > 0.01).sum() > 2


def test_what_is_drawn_depends_on_the_seed_and_the_place_alone():
    h = Hierarchy.load("voc2012")
    kernels = fast(KnowledgeBase(h), strategy="sampling")
    probs, trust = predictions(len(h), 3, 50, 5).to(DEVICE), torch.ones(len(h), device=DEVICE)
    seeds = torch.tensor([7, 1 << 40, 7], device=DEVICE)
    together = kernels.diagnose(probs, trust, seeds, None).leaf
    for i in range(3):
        alone = kernels.diagnose(probs[i : i + 1], trust, seeds[i : i + 1], None).leaf
        assert torch.equal(together[i], alone[0])
    same = kernels.diagnose(probs[:1].expand(3, -1, -1), trust, seeds, None).leaf
    assert torch.equal(same[0], same[2])
    assert not torch.equal(same[0], same[1])
    high = kernels.diagnose(probs[:1], trust, seeds[:1] + (1 << 32), None).leaf
    assert not torch.equal(same[0], high[0])


def test_a_users_rule_prunes_leaves():
    kb = KnowledgeBase(CAT_DOG, rules=["forall x: ~dog(x)", "forall x: ~moped(x)"])
    probs = predictions(len(CAT_DOG), 1, 200, 1)
    trust = torch.full((len(CAT_DOG),), 0.9)
    expected = weights(kb, probs, trust, "sampling")
    for strategy in ("greedy", "sampling"):
        kernels = fast(kb, strategy=strategy)
        found = kernels.diagnose(probs.to(DEVICE), trust.to(DEVICE), torch.tensor([3], device=DEVICE), None, log=True)
        chosen = expected.gather(0, found.leaf.cpu().long()[None])[0]
        assert (chosen > -FORBIDDEN / 2).all()
        torch.testing.assert_close(found.prob.cpu().double(), chosen, atol=2e-5, rtol=0)
        assert torch.equal(found.conflict.cpu(), ~kb.is_consistent((probs > 0.5).movedim(1, -1)))


def test_logits_are_read_as_their_sigmoids():
    h = Hierarchy.load("cityscapes")
    kernels = fast(KnowledgeBase(h), strategy="sampling")
    logits = torch.randn(2, len(h), 60, generator=torch.Generator().manual_seed(0)).mul(4).to(DEVICE)
    valid = torch.rand(2, 60, generator=torch.Generator().manual_seed(1)).to(DEVICE) > 0.3
    trust, seeds = torch.full((len(h),), 0.8, device=DEVICE), torch.tensor([1, 2], device=DEVICE)
    of_logits = kernels.diagnose(logits, trust, seeds, valid, logits=True)
    of_probs = kernels.diagnose(logits.sigmoid(), trust, seeds, valid)
    assert torch.equal(of_logits.leaf, of_probs.leaf)
    torch.testing.assert_close(of_logits.prob, of_probs.prob, atol=2e-5, rtol=0)
    assert (of_probs.prob[~valid] == 1).all()
    assert not of_probs.conflict[~valid].any()
    torch.testing.assert_close(
        kernels.sums(logits, valid, True), kernels.sums(logits.sigmoid(), valid, False), atol=1e-5, rtol=1e-5
    )


def test_any_layout_in_memory():
    h = Hierarchy.load("voc2012")
    kernels = fast(KnowledgeBase(h), strategy="sampling")
    probs, trust = predictions(len(h), 2, 45, 2).to(DEVICE), torch.full((len(h),), 0.8, device=DEVICE)
    seeds = torch.tensor([1, 2], device=DEVICE)
    last = probs.transpose(1, 2).contiguous().transpose(1, 2)
    assert last.stride() != probs.stride()
    assert torch.equal(
        kernels.diagnose(probs, trust, seeds, None).leaf, kernels.diagnose(last, trust, seeds, None).leaf
    )
    torch.testing.assert_close(kernels.sums(probs, None, False), kernels.sums(last, None, False))


# ---- truth degrees -----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    TREES,
    st.integers(0, 10**6),
    st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 2.5]),
    st.integers(1, 70),
    st.booleans(),
)
def test_truth_degrees_are_those_of_pytorch(h, seed, q, pixels, some):
    kb = KnowledgeBase(h)
    probs = predictions(len(h), 2, pixels, seed)
    valid = torch.rand(2, pixels, generator=torch.Generator().manual_seed(seed)) > 0.4 if some else None
    diagnoser = Diagnoser(kb, q=q)
    meter = diagnoser.meter()
    diagnoser.measure(meter, probs, 1, valid)
    wanted = meter.degrees()
    found = diagnoser.fast(DEVICE).truth_degrees(probs.to(DEVICE), 1, None if valid is None else valid.to(DEVICE))
    for family in "CDE":
        torch.testing.assert_close(found[family].cpu(), wanted[family], atol=1e-4, rtol=0)


def test_many_siblings():
    """Beyond 15 they are multiplied on matrix units, with 11 bits."""
    h = Hierarchy.from_dict({"a": [f"x{i}" for i in range(20)], "b": [f"y{i}" for i in range(9)], "c": None})
    diagnoser = Diagnoser(KnowledgeBase(h))
    probs = predictions(len(h), 2, 150, 0)
    meter = diagnoser.meter()
    diagnoser.measure(meter, probs)
    found, wanted = diagnoser.fast(DEVICE).truth_degrees(probs.to(DEVICE), 1, None), meter.degrees()
    for family in "CDE":
        torch.testing.assert_close(found[family].cpu(), wanted[family], atol=3e-4, rtol=0)


def test_sums_add_up_over_tensors():
    h = Hierarchy.load("voc2012")
    kernels = fast(KnowledgeBase(h))
    probs = predictions(len(h), 3, 70, 1).to(DEVICE)
    parts = kernels.sums(probs[:1], None, False) + kernels.sums(probs[1:], None, False)
    torch.testing.assert_close(parts, kernels.sums(probs, None, False), rtol=1e-6, atol=1e-6)
    assert torch.equal(kernels.sums(probs, None, False), kernels.sums(probs, None, False))
    assert (kernels.sums(probs[:, :, :0], None, False) == 0).all()


# ---- the library's face ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dim"), [((2, -1, 5, 7), 1), ((33, -1), 1), ((-1, 9, 4), 0), ((3, 4, -1), -1)])
@pytest.mark.parametrize("strategy", ["greedy", "sampling"])
def test_a_diagnoser_gives_the_same_result(monkeypatch, shape, dim, strategy):
    h = Hierarchy.load("voc2012")
    kb = KnowledgeBase(h)
    shape = tuple(len(h) if size == -1 else size for size in shape)
    probs = predictions(1, 1, math.prod(shape), 4).reshape(shape)
    pixels = probs.movedim(dim, 0)[0]
    valid = torch.rand(pixels.shape, generator=torch.Generator().manual_seed(2)) > 0.2
    diagnoser = Diagnoser(kb, strategy)
    found = diagnoser(probs.to(DEVICE), dim, valid.to(DEVICE), torch.Generator(DEVICE).manual_seed(0))
    assert diagnoser.fast(DEVICE) is not None
    monkeypatch.setattr(fused, "fuses", lambda device: False)
    plain = Diagnoser(kb, strategy)
    wanted = plain(probs, dim, valid, torch.Generator().manual_seed(0))
    assert plain.fast(torch.device("cpu")) is None
    assert torch.equal(found.observed.cpu(), wanted.observed)
    assert torch.equal(found.conflict.cpu(), wanted.conflict)
    assert kb.is_consistent(found.revised.cpu().movedim(dim, -1)).all()
    assert torch.equal(found.leaf.cpu() == -1, ~valid)
    settled = valid & ~wanted.conflict if strategy == "sampling" else valid
    assert torch.equal(found.leaf.cpu()[settled], wanted.leaf[settled])
    torch.testing.assert_close(found.log_prob.cpu()[settled], wanted.log_prob[settled], atol=1e-4, rtol=0)
    for family, degrees in wanted.truth_degrees.items():
        torch.testing.assert_close(found.truth_degrees[family].cpu(), degrees, atol=1e-4, rtol=0)


def test_what_is_no_probability_is_refused_unless_it_does_not_count():
    diagnoser = Diagnoser(KnowledgeBase(CAT_DOG, rules=["forall x: ~cat(x)"]), "sampling")
    probs = predictions(len(CAT_DOG), 1, 40, 0).to(DEVICE)
    probs[0, 2, 5] = float("nan")
    with pytest.raises(ProbabilityError, match="1 value is not in"):
        diagnoser(probs)
    valid = torch.ones(1, 40, dtype=torch.bool, device=DEVICE)
    valid[0, 5] = False
    result = diagnoser(probs, valid=valid)
    assert diagnoser.kb.is_consistent(result.revised.movedim(1, -1)).all()
    assert result.leaf[0, 5] == -1


def test_where_the_kernels_do_not_serve():
    deep: dict = {"x0": None}
    for i in range(1, 10):
        deep = {f"x{i}": deep, f"y{i}": None}
    assert Diagnoser(KnowledgeBase(Hierarchy.from_dict(deep))).fast(DEVICE) is None
    assert Diagnoser(KnowledgeBase(CAT_DOG, families="CD")).fast(DEVICE) is None
    assert Diagnoser(KnowledgeBase(CAT_DOG), "soft").fast(DEVICE) is None
    assert not Diagnoser(KnowledgeBase(CAT_DOG), quantifier="min").fast(DEVICE).measures
    assert not Diagnoser(KnowledgeBase(CAT_DOG), q=7).fast(DEVICE).measures
    assert not Diagnoser(KnowledgeBase(CAT_DOG), connectives="godel").fast(DEVICE).measures
    assert Diagnoser(KnowledgeBase(CAT_DOG)).fast(DEVICE).measures
