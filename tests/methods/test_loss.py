"""Losses of both heads against torch's own, written out in full; and points that stand for all pixels."""

import pytest
import torch
import torch.nn.functional as F

import logicdiag as ld
from logicdiag.errors import ConfigError, OptionError
from logicdiag.logic.leaves import DECISIONS, Leaves
from logicdiag.methods.config import LossConfig
from logicdiag.methods.loss import Loss, certainty, path_bce, path_table
from logicdiag.plan import moved
from logicdiag.pseudo.target import Target

RAGGED = {"animal": {"bird": ["owl", "wren"], "cat": None}, "sky": None, "vehicle": {"car": {"taxi": {"cab": None}}}}
TREES = [ld.Hierarchy.from_dict(RAGGED), ld.Hierarchy.from_dict(["a", "b", "c"]), ld.Hierarchy.load("voc2012")]
H = TREES[0]
SLOTS = (0, 1)


def random(h=H, size=(2, 6, 7), channels=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(size[0], channels or len(h), *size[1:], generator=g)
    leaf = torch.randint(len(h.leaves), size, generator=g)
    weight = torch.rand(size, generator=g) * (torch.rand(size, generator=g) > 0.3)
    return logits, Target(weight, leaf)


def paths(h, leaf):
    """The target of every node, written out: true on the path to the leaf."""
    out = torch.zeros(leaf.shape[0], len(h), *leaf.shape[1:])
    for index, name in enumerate(h.leaves):
        for node in h.path(name):
            out[:, h.index(node)][leaf == index] = 1
    return out


@pytest.mark.parametrize("h", TREES, ids=["ragged", "no superclass", "voc2012"])
def test_path_bce_is_the_binary_cross_entropy_of_all_nodes(h):
    logits, target = random(h)
    mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = path_bce(mine, target.leaf, path_table(h))
    full = F.binary_cross_entropy_with_logits(theirs, paths(h, target.leaf), reduction="none").sum(1)
    torch.testing.assert_close(loss, full)
    for one, other in ((mine, loss), (theirs, full)):
        (other * target.weight).sum().backward()
        assert one.grad is not None
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_path_bce_of_sure_predictions():
    h = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    logits = torch.tensor([40.0, -40, 40, -40])[None, :, None]
    right, wrong = torch.tensor([[1]]), torch.tensor([[0]])
    torch.testing.assert_close(path_bce(logits, right, path_table(h)), torch.zeros(1, 1))
    torch.testing.assert_close(path_bce(logits, wrong, path_table(h)), torch.full((1, 1), 80.0))


@pytest.mark.parametrize(("nodes", "by"), [("sum", 1), ("mean", len(H))])
def test_loss_is_a_sum_over_weighted_pixels(nodes, by):
    logits, target = random()
    full = F.binary_cross_entropy_with_logits(logits, paths(H, target.leaf), reduction="none").sum(1) / by
    loss = Loss(LossConfig(nodes=nodes, leaf=0.0), H, "hierarchical")
    torch.testing.assert_close(loss(logits, target, {}), (full * target.weight).sum())


def test_labels_are_taken_instead_of_the_leaf():
    logits, target = random()
    labels = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1))
    loss = Loss(LossConfig(leaf=0.0), H, "hierarchical")
    full = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    found = loss(logits, Target(target.weight, target.leaf, labels), {})
    torch.testing.assert_close(found, (full * target.weight).sum())
    same = loss(logits, Target(target.weight, None, paths(H, target.leaf)), {})
    torch.testing.assert_close(same, loss(logits, target, {}))
    with_leaf = Loss(LossConfig(leaf=1.0), H, "hierarchical")  # whose target there is none of
    torch.testing.assert_close(with_leaf(logits, Target(target.weight, target.leaf, labels), {}), found)


def test_flat_head_learns_by_cross_entropy():
    logits, target = random(channels=len(H.leaves))
    full = F.cross_entropy(logits, target.leaf, reduction="none")
    found = Loss(LossConfig(), H, "flat")(logits, target, {})
    torch.testing.assert_close(found, (full * target.weight).sum())
    with pytest.raises(ConfigError, match="flat head learns from leaves"):
        Loss(LossConfig(), H, "flat")(logits, Target(target.weight, None, torch.zeros_like(logits)), {})


def test_leaf_cross_entropy_stands_beside_the_binary_one():
    logits, target = random()
    plain = Loss(LossConfig(leaf=0.0), H, "hierarchical")(logits, target, {})
    found = Loss(LossConfig(leaf=0.5), H, "hierarchical")(logits, target, {})
    leaves = F.cross_entropy(logits[:, list(H.leaf_indices)], target.leaf, reduction="none")
    torch.testing.assert_close(found, plain + 0.5 * (leaves * target.weight).sum())


def test_pixels_of_weight_0_count_nothing():
    logits, target = random()
    loss = Loss(LossConfig(leaf=1.0), H, "hierarchical")
    other = torch.where(target.weight == 0, (target.leaf + 1) % len(H.leaves), target.leaf)
    assert (other != target.leaf).any()
    logits.requires_grad_()
    value = loss(logits, target, {})
    torch.testing.assert_close(value, loss(logits, Target(target.weight, other), {}))
    value.backward()
    assert not logits.grad.movedim(1, -1)[target.weight == 0].any()
    assert logits.grad.movedim(1, -1)[target.weight > 0].any(-1).all()


def test_half_precision_is_summed_in_float32():
    logits, target = random()
    found = Loss(LossConfig(), H, "hierarchical")(logits.bfloat16(), target, {})
    assert found.dtype == torch.float32


# ---- points ----------------------------------------------------------------------------------------------------------


def planned(loss, step=0, slots=SLOTS):
    return moved(loss.plan(step, slots), torch.device("cpu"))


def learned_from(by, points, step=0, slots=SLOTS, seed=0, logits=None, size=(2, 16, 16)):
    """Which pixels have a gradient."""
    made, target = random(size=size)
    logits = (made if logits is None else logits).clone().requires_grad_()
    target = Target(torch.ones(size), target.leaf)
    loss = Loss(LossConfig(points=points, points_by=by), H, "hierarchical", seed)
    loss(logits, target, planned(loss, step, slots)).backward()
    return logits.grad.ne(0).any(1)


@pytest.mark.parametrize("by", ["random", "uncertain"])
@pytest.mark.parametrize("points", [1, 7, 40, 85, 100, 200, 255])
def test_number_of_points(by, points):
    assert learned_from(by, points).flatten(1).sum(1).tolist() == [points, points]


@pytest.mark.parametrize("by", ["random", "uncertain"])
def test_points_are_keyed_by_seed_step_and_slot(by):
    same = torch.zeros(2, len(H), 16, 16) + 0.1
    first = learned_from(by, 40, logits=same)
    assert torch.equal(first, learned_from(by, 40, logits=same))
    assert torch.equal(first.flip(0), learned_from(by, 40, slots=(1, 0), logits=same))
    assert not torch.equal(first[0], first[1])
    for other in (learned_from(by, 40, step=1, logits=same), learned_from(by, 40, seed=1, logits=same)):
        assert not torch.equal(first, other)


@pytest.mark.parametrize("points", [42, 43, 1000])
@pytest.mark.parametrize("by", ["random", "uncertain"])
def test_as_many_points_as_pixels_are_the_full_loss(points, by):
    logits, target = random()
    full = Loss(LossConfig(), H, "hierarchical")(logits, target, {})
    loss = Loss(LossConfig(points=points, points_by=by), H, "hierarchical")
    found = loss(logits, target, planned(loss))
    assert torch.equal(full, found)


@pytest.mark.parametrize("decision", DECISIONS)
def test_random_points_expect_the_full_loss(decision):
    logits, target = random()
    full = Loss(LossConfig(leaf=0.3), H, "hierarchical", decision=decision)(logits, target, {})
    loss = Loss(LossConfig(leaf=0.3, points=10), H, "hierarchical", decision=decision)
    found = torch.stack([loss(logits, target, planned(loss, step)) for step in range(600)])
    error = found.std() / len(found) ** 0.5
    assert abs(found.mean() - full) < 4 * error
    assert error < 0.02 * full


@pytest.mark.parametrize("points", [40, 120])
def test_uncertain_points_are_three_quarters_unsure(points):
    """Half of the pixels are unsure: all of three quarters, and half of the rest."""
    logits = torch.full((2, len(H), 16, 16), 5.0)
    logits[..., 8:] = 0.01
    chosen = torch.stack([learned_from("uncertain", points, step, logits=logits) for step in range(20)])
    share = float(chosen[..., 8:].sum() / chosen.sum())
    available = 128 - 0.75 * points
    expected = 0.75 + 0.25 * available / (256 - 0.75 * points)  # the rest is drawn from what is left
    assert abs(share - expected) < 0.03
    at_random = torch.stack([learned_from("random", points, step, logits=logits) for step in range(20)])
    assert abs(float(at_random[..., 8:].sum() / at_random.sum()) - 0.5) < 0.05


def test_certainty():
    logits = torch.tensor([[[3.0, -0.2], [-2.0, 9.0]]])
    assert certainty(logits, "hierarchical")[0].tolist() == pytest.approx([2.0, 0.2])
    assert certainty(logits, "flat")[0].tolist() == pytest.approx([5.0, 9.2])
    assert certainty(logits[:, :1], "flat").tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("options", "head", "error", "says"),
    [
        ({"points": 0}, "hierarchical", ConfigError, "loss.points is 0, expected a whole number of at least 1"),
        ({"leaf": -0.5}, "hierarchical", ConfigError, "loss.leaf is -0.5, expected 0 or more"),
        ({"nodes": "men"}, "hierarchical", OptionError, "did you mean 'mean'"),
        ({"points_by": "uncertian"}, "hierarchical", OptionError, "did you mean 'uncertain'"),
    ],
)
def test_wrong_options(options, head, error, says):
    with pytest.raises(error, match=says):
        Loss(LossConfig(**options), H, head)


def sure_node(h, leaf, depth):
    """The concept at this depth on the way to each leaf, or the leaf."""
    table = [(list(h.path_indices(i)) + [i] * depth)[depth] for i in h.leaf_indices]
    return torch.tensor(table)[leaf]


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("depth", [0, 1])
def test_what_is_below_the_sure_level_is_not_learned(decision, depth):
    """Written out: the other nodes' cross entropies, and minus the log of the summed softmax of the leaves below. By
    the tree, what is below does not feel that, either.
    """
    logits, target = random()
    sure = sure_node(H, target.leaf, depth)
    loss = Loss(LossConfig(nodes="sum", leaf=0.5), H, "hierarchical", decision=decision)
    logits.requires_grad_()
    found = loss(logits, Target(target.weight, target.leaf, None, sure), {})
    found.backward()
    by_hand, p = 0.0, Leaves(H, decision).scores(logits.detach()).softmax(1)
    for b, y, x in torch.ones_like(target.leaf).nonzero().tolist():
        node = int(sure[b, y, x])
        path = H.path_indices(node)
        pixel = 0.0
        for other in range(len(H)):
            if node in H.path_indices(other)[:-1]:
                felt = decision == "path" or (decision == "leaf" and other in H.leaf_indices)
                assert felt or abs(logits.grad[b, other, y, x]) < 1e-6
                continue
            label = torch.tensor(float(other in path))
            pixel += F.binary_cross_entropy_with_logits(logits.detach()[b, other, y, x], label)
        below = [k for k, leaf in enumerate(H.leaf_indices) if node in H.path_indices(leaf)]
        by_hand += target.weight[b, y, x] * (pixel - 0.5 * p[b, below, y, x].sum().log())
    torch.testing.assert_close(found.detach(), torch.as_tensor(by_hand), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("decision", DECISIONS)
def test_labels_concept_by_concept_have_no_leaf(decision):
    """So that its cross entropy is left out, whatever decides."""
    logits, target = random()
    labels = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1))
    by_concept = Target(target.weight, None, labels)
    expected = (F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1) * target.weight).sum()
    found = Loss(LossConfig(nodes="sum"), H, "hierarchical", decision=decision)(logits, by_concept, {})
    torch.testing.assert_close(found, expected)


def test_sure_of_the_leaf_is_the_ordinary_loss():
    logits, target = random()
    sure = torch.tensor(H.leaf_indices)[target.leaf]
    for decision in DECISIONS:
        loss = Loss(LossConfig(), H, "hierarchical", decision=decision)
        whole = loss(logits, target, {})
        torch.testing.assert_close(loss(logits, Target(target.weight, target.leaf, None, sure), {}), whole)


def test_points_take_their_levels_along():
    logits, target = random()
    sure = sure_node(H, target.leaf, 1)
    loss = Loss(LossConfig(points=20), H, "hierarchical")
    plan = moved(loss.plan(0, SLOTS), torch.device("cpu"))
    places = loss._points(logits, plan)
    picked = Target(target.weight, target.leaf, None, sure).at(places)
    assert torch.equal(picked.sure, sure.flatten(1).gather(1, places))
    assert torch.isfinite(loss(logits, Target(target.weight, target.leaf, None, sure), plan))


def test_labelled_pixels_count_as_their_class_does():
    weights = torch.linspace(0.5, 3, len(H.leaves))
    leaf = torch.tensor([[[0, 2, -1], [1, 2, -1]]])
    for loss, expected in (
        (Loss(LossConfig(), H, "flat", weights=weights), [[weights[0], weights[2], 0], [weights[1], weights[2], 0]]),
        (Loss(LossConfig(), H, "flat"), [[1, 1, 0], [1, 1, 0]]),
    ):
        target = loss.labels(leaf)
        assert torch.equal(target.weight, torch.tensor([expected]))
        assert torch.equal(target.leaf, torch.tensor([[[0, 2, 0], [1, 2, 0]]]))


@pytest.mark.parametrize("head", ["hierarchical", "flat"])
def test_what_labelled_pixels_count_is_in_their_loss(head):
    channels = len(H) if head == "hierarchical" else len(H.leaves)
    logits, target = random(channels=channels)
    weights = torch.linspace(0.5, 3, len(H.leaves))
    even, weighed = Loss(LossConfig(), H, head), Loss(LossConfig(), H, head, weights=weights)
    by_hand = even(logits, Target(weights[target.leaf], target.leaf), {})
    assert by_hand != even(logits, even.labels(target.leaf), {})
    torch.testing.assert_close(weighed(logits, weighed.labels(target.leaf), {}), by_hand)


@pytest.mark.parametrize("head", ["hierarchical", "flat"])
def test_pseudo_labels_do_not(head):
    channels = len(H) if head == "hierarchical" else len(H.leaves)
    logits, target = random(channels=channels)
    weights = torch.linspace(0.5, 3, len(H.leaves))
    assert torch.equal(
        Loss(LossConfig(), H, head, weights=weights)(logits, target, {}),
        Loss(LossConfig(), H, head)(logits, target, {}),
    )
