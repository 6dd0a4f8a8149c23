"""What is U2PL's own: the partition, the queues, and the contrast."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from logicdiag.data.config import ViewConfig
from logicdiag.data.views import partner
from logicdiag.errors import ConfigError
from logicdiag.methods import u2pl
from logicdiag.methods.config import U2PLConfig
from logicdiag.methods.contrast import Pixels, confident, contrast, negatives
from logicdiag.methods.loss import Loss
from logicdiag.methods.memory import Memory, drawn, lots
from logicdiag.methods.partition import alone, entropy, parted
from logicdiag.methods.u2pl import at_size, rows
from logicdiag.plan import part
from logicdiag.pseudo.target import Target

from .tester import H, MethodTester, a_step, made

CPU = torch.device("cpu")
THRESHOLD = 0.95
"""Some pixels are surer, and some are not."""


class TestU2PL(MethodTester):
    name, parts = "u2pl", ("labeled", "unlabeled", "contrast")
    spared: ClassVar = {"contrast": ("classifier.",)}

    def unlabeled(self, parts):
        return parts["unlabeled"] + 0.1 * parts["contrast"]

    @pytest.mark.parametrize("decay", [0.0, 0.9])
    def test_the_head_learns_and_its_average_follows(self, decay):
        method = made("u2pl", teacher_decay=decay)
        (head,) = method.heads
        step = a_step(method)
        method.losses(step).total.backward()
        assert all(parameter.grad.any() for parameter in head.parameters())
        assert all(module.training for module in head.modules())
        if not decay:
            assert method.averaged_projection is None
            return
        averaged = method.averaged_projection
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in averaged.parameters())
        before = [parameter.clone() for parameter in averaged.parameters()]
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(1)
        method.follow(1000, step.plan)
        for old, mine, theirs in zip(before, averaged.parameters(), head.parameters(), strict=True):
            torch.testing.assert_close(mine, 0.9 * old + 0.1 * theirs)

    def test_queues_and_head_are_in_its_state(self):
        method, other = (made("u2pl", teacher_decay=0.9) for _ in range(2))
        method.losses(a_step(method))
        assert (method.queues.filled > 0).any()
        where = other.queues.features.data_ptr()
        other.load_state_dict(method.state_dict())
        assert other.queues.features.data_ptr() == where  # where a captured step finds them
        assert torch.equal(other.queues.features, method.queues.features)
        assert torch.equal(other.queues.filled, method.queues.filled)
        first, second = (one.losses(a_step(one, index=6)).parts["contrast"] for one in (method, other))
        assert torch.equal(first, second)
        with pytest.raises(ValueError, match="the memory is"):
            made("u2pl", teacher_decay=0.9, u2pl=U2PLConfig(queue=7)).load_state_dict(method.state_dict())

    def test_unreliable_pixels_teach_nothing(self):
        """At the end of a run all are reliable, and the loss is fixmatch's."""
        method, plain = made("u2pl", "threshold"), made("fixmatch", "threshold")
        late, found = (plain.losses(a_step(plain)), method.losses(a_step(method, progress=1.0)))
        torch.testing.assert_close(found.parts["unlabeled"], late.parts["unlabeled"])
        reliable, pixels = found.statistics["reliable"]
        assert reliable == pixels
        method = made("u2pl", "threshold", u2pl=U2PLConfig(unreliable=0.4))
        reliable, pixels = method.losses(a_step(method, progress=0.5)).statistics["reliable"]
        assert float(reliable / pixels) == pytest.approx(0.8, abs=0.001)

    def test_the_loss_is_a_mean_over_reliable_pixels(self, monkeypatch):
        """Were each pixel's loss 1, so would be the mean of any of them."""
        method = made("u2pl", "threshold", view=ViewConfig(cutmix=0.0), u2pl=U2PLConfig(unreliable=0.4))
        step = a_step(method, progress=0.0)
        monkeypatch.setattr(Loss, "__call__", lambda _, logits, target, plan: target.weight.sum())
        found = method.losses(step)
        reliable, pixels = found.statistics["reliable"]
        assert float(reliable / pixels) == pytest.approx(0.6, abs=0.001)
        assert float(found.parts["unlabeled"]) == pytest.approx(1.0)

    def moved(self):
        """A student and a head that have moved away from their averages."""
        options = U2PLConfig(unreliable=0.6, confidence=0.4, ranks=(1, 3))
        method = made("u2pl", "threshold", threshold=THRESHOLD, teacher_decay=0.9, u2pl=options)
        g = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for network in (method.student, method.projection):
                for parameter in network.parameters():
                    parameter.add_(0.05 * torch.randn(parameter.shape, generator=g))
        return method

    def test_how_it_is_put_together(self, monkeypatch):
        """Whose representations are held against each other, and of which pixels, class by class."""
        method, seen = self.moved(), []
        monkeypatch.setattr(u2pl, "contrast", lambda *args: seen.append(args) or contrast(*args))
        step = a_step(method, progress=0.5)  # a share of 0.3
        found = method.losses(step)
        ((mine, theirs, pixels, queues, *_),) = seen
        assert queues is method.queues
        method = self.moved()
        strong, boxes = method.strong(step.unlabeled.image, part(step.plan, "strong"))
        logits, features = method.student.with_features(torch.cat([step.labeled.image, strong]))
        torch.testing.assert_close(mine, rows(method.projection(features)))
        weak = torch.cat([step.labeled.image, step.unlabeled.image])
        taught, others = method.teacher.model.with_features(weak)
        torch.testing.assert_close(theirs, rows(method.averaged_projection(others)))
        # what is learned
        probs, valid = taught[:, list(H.leaf_indices)].softmax(1), step.unlabeled.valid
        doubt = -(probs * probs.log()).sum(1)[3:]
        reliable = valid & (doubt <= doubt[valid].sort().values[round(0.7 * int(valid.sum())) - 1])
        sure, leaf = taught[3:, list(H.leaf_indices)].sigmoid().max(1)
        counts = (sure >= THRESHOLD) & reliable
        assert 0 < counts.sum() < reliable.sum()
        mixed = [torch.where(boxes, partner(t), t) for t in (counts.float(), leaf)]
        torch.testing.assert_close(
            found.parts["unlabeled"], method.loss(logits[3:], Target(*mixed), {}) / reliable.sum(), rtol=1e-3, atol=0
        )
        # who takes part
        size = features.shape[-2:]
        label = at_size(torch.cat([step.labeled.leaf, torch.where(counts, leaf, -1)]), size)
        probs, boxes = at_size(probs, size), at_size(boxes, size)
        own = probs.gather(1, label.clamp(min=0)[:, None])[:, 0]
        positive = torch.where(own > 0.4, label, -1)
        anchor = torch.cat([positive[:3], torch.where(boxes, partner(positive[3:]), positive[3:])])
        assert torch.equal(pixels.positive, positive.flatten())
        assert torch.equal(pixels.anchor, anchor.flatten())
        assert len({tuple(t.flatten().tolist()) for t in (label, positive, anchor)}) == 3
        before = (probs[:, None] > probs[:, :, None]).sum(2)  # how many classes are likelier
        unreliable = at_size(valid & ~reliable, size)
        for c in range(len(H.leaves)):
            likely, middling = before[:3, c] < 1, (before[3:, c] >= 1) & (before[3:, c] < 3)
            labelled = (label[:3] >= 0) & (label[:3] != c) & likely
            assert torch.equal(pixels.negative[c], torch.cat([labelled, unreliable & middling]).flatten()), c
        assert pixels.negative[:, : label[:3].numel()].any()
        assert pixels.negative[:, label[:3].numel() :].any()

    def test_a_part_of_a_step_counts_as_much_as_it_has_pixels(self):
        method = made("u2pl")
        step = a_step(method)
        whole = method.losses(step).parts["contrast"]
        half = made("u2pl").losses(replace(step, unlabeled_pixels=2 * step.unlabeled_pixels)).parts["contrast"]
        torch.testing.assert_close(half, whole / 2)

    def test_what_is_drawn_for_views_differs(self):
        assert len(set(made("u2pl").plan(5, 0.5, (0, 1), (0, 1))["seeds"].tolist())) == 4

    def test_the_share_falls_over_the_run(self):
        method = made("u2pl", u2pl=U2PLConfig(unreliable=0.3))
        shares = [float(method.plan(0, progress, (0,), (0,))["unreliable"]) for progress in (0.0, 0.5, 1.0)]
        assert shares == pytest.approx([0.3, 0.15, 0.0])

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"unreliable": 1.0}, "method.u2pl.unreliable is 1.0, expected a share"),
            ({"queue": 0}, "method.u2pl.queue is 0, expected a whole number"),
            ({"weight": -1.0}, "method.u2pl.weight is -1.0, expected 0 or more"),
            ({"temperature": 0.0}, "method.u2pl.temperature is 0.0, expected a number above 0"),
            ({"ranks": (3, 3)}, r"method.u2pl.ranks is \[3, 3\], expected two rising ranks"),
            ({"ranks": (5, 20)}, r"method.u2pl.ranks is \[5, 20\], but of 5 classes none .* a first rank below 5"),
            ({"confidence": 1.0}, "method.u2pl.confidence is 1.0, expected a probability from 0 to below 1"),
            ({"confidence": -0.1}, "method.u2pl.confidence is -0.1, expected a probability from 0 to below 1"),
        ],
    )
    def test_wrong_options(self, options, says):
        with pytest.raises(ConfigError, match=says):
            made("u2pl", u2pl=U2PLConfig(**options))


# ---- the partition ---------------------------------------------------------------------------------------------------


def test_entropy():
    even, sure = torch.zeros(4), torch.tensor([50.0, 0.0, 0.0, 0.0])
    three_to_one = torch.tensor([0.0, math.log(3.0), -50.0, -50.0])
    found = entropy(torch.stack([even, sure, three_to_one], 1)[None, :, None])
    expected = [math.log(4), 0.0, -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))]
    assert found[0, 0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("share", "dropped"), [(0.0, []), (0.2, [3, 7]), (0.5, [0, 3, 5, 7, 8])])
def test_the_least_sure_share_is_unreliable(share, dropped):
    """Ten pixels that count, and two of padding, whose entropy is the greatest and matters not."""
    values = torch.tensor([0.5, 0.1, 0.2, 0.9, 0.3, 0.6, 0.0, 0.8, 0.7, 0.4, 5.0, 6.0])
    valid = torch.arange(12) < 10
    found = parted(values.view(1, 3, 4), valid.view(1, 3, 4), torch.tensor(share))
    assert found.unreliable.flatten().nonzero()[:, 0].tolist() == dropped
    assert torch.equal(found.reliable.flatten(), valid & ~found.unreliable.flatten())
    assert float(found.weight) == pytest.approx(10 / (10 - len(dropped)))
    assert int(found.pixels) == 10


def test_processes_part_their_pixels_together():
    whole, valid = torch.rand(4, 5, 5), torch.ones(4, 5, 5, dtype=torch.bool)
    expected = parted(whole, valid, torch.tensor(0.3))
    halves = [torch.where(valid, whole, torch.inf)[k : k + 2] for k in (0, 2)]
    parts = [parted(half, valid[:2], torch.tensor(0.3), lambda _: torch.stack(halves)) for half in halves]
    assert torch.equal(torch.cat([part.reliable for part in parts]), expected.reliable)
    assert all(part.weight == expected.weight for part in parts)


# ---- the queues ------------------------------------------------------------------------------------------------------


def test_first_in_is_first_out():
    memory = Memory(2, 3, 1, CPU)
    memory.push(torch.tensor([[[1.0], [2.0]], [[7.0], [8.0]]]), torch.tensor([2, 1]))
    assert memory.features[..., 0].tolist() == [[1, 2, 0], [7, 0, 0]]
    assert memory.filled.tolist() == [2, 1]
    memory.push(torch.tensor([[[3.0], [4.0]], [[9.0], [9.0]]]), torch.tensor([2, 0]))
    assert memory.features[..., 0].tolist() == [[4, 2, 3], [7, 0, 0]]
    assert memory.filled.tolist() == [3, 1]
    assert memory.next.tolist() == [1, 1]


def test_lots_belong_to_a_view_and_its_pixels():
    seeds = torch.tensor([3, 1 << 60, 5])
    found = lots(seeds, 1000)
    assert (found >= 0).all()
    assert len(set(found.flatten().tolist())) == 3000
    assert torch.equal(found[1:], lots(seeds[1:], 1000))
    assert torch.equal(found[:, :10], lots(seeds, 10))
    high = (found > found.median()).float().mean(1)
    assert ((high - 0.5).abs() < 0.06).all()


def test_drawn_are_those_with_the_largest_lots():
    numbers = torch.tensor([5, 9, 1, 7])
    offered = torch.tensor([[True, False, True, True], [False, False, True, False]])
    values, places = drawn(numbers, offered, 2)
    assert values.tolist() == [[7, 5], [1, -1]]
    assert places[0].tolist() == [3, 0]
    assert places[1, 0] == 2


# ---- who takes part --------------------------------------------------------------------------------------------------

PROBS = torch.tensor([[0.6, 0.25, 0.1, 0.05], [0.1, 0.2, 0.3, 0.4]]).T[None, :, None]
"""Two pixels of four classes."""


def test_anchors_are_sure_of_their_class():
    assert confident(torch.tensor([[[0, 3]]]), PROBS, 0.3).tolist() == [[[0, 3]]]
    assert confident(torch.tensor([[[1, 3]]]), PROBS, 0.3).tolist() == [[[-1, 3]]]
    assert confident(torch.tensor([[[0, -1]]]), PROBS, 0.3).tolist() == [[[0, -1]]]


def test_negatives_by_rank():
    """A labelled pixel is none of the likely classes but its own; an unreliable one, of those in the middle."""
    leaf = torch.tensor([[[0, -1]]])
    unreliable = torch.tensor([[[True, True]], [[False, True]]])
    found = negatives(leaf, unreliable, PROBS.expand(3, -1, -1, -1), (2, 3))
    assert found[0, :, 0].int().T.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]
    assert found[1, :, 0].int().T.tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]
    assert found[2, :, 0].int().T.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]


def test_features_are_about_pixels():
    rows = torch.arange(9).view(1, 9, 1).expand(1, 9, 5)
    assert at_size(rows, (3, 2))[0].tolist() == [[0, 0], [4, 4], [8, 8]]
    assert at_size(rows.transpose(1, 2), (2, 1))[0].tolist() == [[0], [0]]


# ---- the loss --------------------------------------------------------------------------------------------------------


def a_contrast(options=None):
    """Five pixels of three classes: two anchors of class 0, one of class 1, and negatives of both."""
    mine = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0], [1.0, 1.0], [1.0, 0.0]], requires_grad=True)
    theirs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -5.0]])
    no = torch.tensor([[False, False, False, True, False], [False, False, False, False, True], [False] * 5])
    pixels = Pixels(
        torch.tensor([11, 12, 13, 14, 15]), torch.tensor([0, 0, 1, -1, -1]), torch.tensor([0, 0, 1, -1, 2]), no
    )
    return mine, theirs, pixels, options or U2PLConfig(anchors=2, negatives=3)


def test_the_contrast_by_hand():
    mine, theirs, pixels, options = a_contrast()
    memory = Memory(3, 8, 2, CPU)
    found = contrast(mine, theirs, pixels, memory, options, alone)
    assert memory.filled.tolist() == [1, 1, 0]
    assert memory.features[:2, 0].tolist() == [[-1, 0], [0, -1]]  # of length 1

    def term(alike, unlike):
        """All three negatives are the one there is."""
        return -math.log(math.exp(alike / 0.5) / (math.exp(alike / 0.5) + 3 * math.exp(unlike / 0.5)))

    half = math.sqrt(0.5)  # the positive of class 0 is the mean of (1, 0) and (0, 1)
    first = (term(half, -1.0) + term(half, 0.0)) / 2
    second = term(0.8, -0.8)
    assert found.item() == pytest.approx((first + second) / 2)
    found.backward()
    assert mine.grad.ne(0).any(1).tolist() == [True, True, True, False, False]


def test_at_most_so_many_anchors():
    mine, theirs, pixels, _ = a_contrast()
    found = contrast(mine, theirs, pixels, Memory(3, 8, 2, CPU), U2PLConfig(anchors=1, negatives=3), alone)
    found.backward()
    assert mine.grad.ne(0).any(1).tolist() == [False, True, True, False, False]  # the larger lot of class 0


def test_anchors_have_negatives_of_their_own():
    """Two that are alike are held against other parts of the queue."""
    memory, g = Memory(1, 64, 2, CPU), torch.Generator().manual_seed(0)
    memory.push(torch.nn.functional.normalize(torch.randn(1, 64, 2, generator=g), dim=2), torch.tensor([64]))
    mine = torch.ones(2, 2, requires_grad=True)
    zeros = torch.zeros(2, dtype=torch.int64)
    pixels = Pixels(torch.tensor([11, 12]), zeros, zeros, torch.zeros(1, 2, dtype=torch.bool))
    theirs = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    contrast(mine, theirs, pixels, memory, U2PLConfig(anchors=2, negatives=4), alone).backward()
    assert not torch.allclose(mine.grad[0], mine.grad[1])


def test_without_negatives_there_is_no_contrast():
    mine, theirs, pixels, options = a_contrast()
    none = Pixels(pixels.lots, pixels.anchor, pixels.positive, torch.zeros(3, 5, dtype=torch.bool))
    found = contrast(mine, theirs, none, Memory(3, 8, 2, CPU), options, alone)
    assert found.item() == 0
    found.backward()
    assert not mine.grad.any()
