"""What is AEL's own: the bank of confidences, views and pixels that follow it, and the weights of pixels."""

from dataclasses import replace

import pytest
import torch

from logicdiag.data.config import ViewConfig
from logicdiag.data.open import open_dataset
from logicdiag.data.views import partner
from logicdiag.engine.check import check
from logicdiag.errors import ConfigError
from logicdiag.methods.ael import Bank, choose_class, moved_to, taken
from logicdiag.methods.config import AELConfig
from logicdiag.methods.loss import Loss
from logicdiag.methods.memory import lots
from logicdiag.methods.partition import alone
from logicdiag.plan import part
from logicdiag.pseudo.target import Target
from tests.engine.small import config

from .tester import H, MethodTester, a_step, made

CPU = torch.device("cpu")
PLAIN = AELConfig(beta=0.0, gamma=0.0, paste=0.0, area=1.0)
"""Nothing that is AEL's own."""
CONFIDENCE = (0.0, 0.9, 0.5, 0.2, 0.7)
"""Of a bank; the first class lacks all."""


class TestAEL(MethodTester):
    name = "ael"

    def test_without_what_is_its_own_it_is_fixmatch(self):
        method, plain = made("ael", "threshold", ael=PLAIN), made("fixmatch", "threshold")
        found, expected = (one.losses(a_step(one)) for one in (method, plain))
        torch.testing.assert_close(found.total, expected.total)

    @pytest.mark.parametrize("psi", ["threshold", "diagnosis"])
    def test_against_the_equation(self, psi):
        """The weighted mean over sampled pixels, by hand, where nothing is mixed."""
        options = AELConfig(beta=1.0, gamma=2.0, paste=0.0)
        method = made("ael", psi, teacher_decay=0.9, ael=options)
        method.bank.confidence.copy_(torch.tensor(CONFIDENCE))
        step = a_step(method)
        step.plan["strong/boxes"].zero_()
        seen = []
        inner = method.target
        method.target = lambda *args: seen.append(inner(*args)) or seen[-1]
        logits = []
        predict = method.predict
        method.predict = lambda image: logits.append(predict(image)) or logits[-1]
        found = method.losses(step)
        ((target, _),), ((*_, on_strong),) = seen, [logits[0].split(3)]
        leaf = target.leaves(method.student.leaf_channels)
        probs = method.student.leaf_logits(method.evaluated(step.unlabeled.image)).softmax(1).amax(1)
        rates = 1 - torch.tensor(CONFIDENCE)
        numbers = lots(step.plan["mix/seeds"], leaf[0].numel()).view_as(leaf)
        sampled = taken(leaf, rates, numbers) & step.unlabeled.valid
        weight = probs**2 * sampled
        expected = method.loss(on_strong, Target(weight * target.weight, leaf), {}) / weight.sum()
        torch.testing.assert_close(found.parts["unlabeled"], expected)
        assert found.statistics["sampled"] == (sampled.sum(), step.unlabeled.valid.sum())
        share = float(sampled.sum() / step.unlabeled.valid.sum())
        assert 0.1 < share < 0.95

    def moved(self):
        """All that is its own, and a student that has moved away from its teacher."""
        options = AELConfig(beta=1.0, gamma=2.0, paste=1.0, area=0.01)
        method = made("ael", "threshold", threshold=0.95, teacher_decay=0.9, ael=options)
        g = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in method.student.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=g))
        method.bank.confidence.copy_(torch.tensor(CONFIDENCE))
        method.bank.updates.fill_(1)
        return method

    def test_how_it_is_put_together(self):
        """Views are pasted, boxes are moved, weights are mixed with labels, and the bank hears of pasted pixels."""
        method = self.moved()
        step = a_step(method)
        found, bank = method.losses(step), method.bank
        method = self.moved()
        labeled, unlabeled = method._pasted(step).labeled, step.unlabeled
        assert (labeled.leaf != step.labeled.leaf).any()
        with torch.no_grad():
            weak = method.teacher.model(unlabeled.image)
        sure, seen = method.student.leaf_logits(weak).softmax(1).max(1)
        numbers = lots(step.plan["mix/seeds"], seen[0].numel()).view_as(seen)
        plan = method._adapted(seen, unlabeled.valid, numbers, step.plan)
        assert (plan["boxes"] != step.plan["strong/boxes"]).any()
        strong, boxes = method.strong(unlabeled.image, plan)
        on_labeled, on_strong = method.student(torch.cat([labeled.image, strong])).split(3)
        best, leaf = weak.sigmoid()[:, list(H.leaf_indices)].max(1)
        weight = sure**2 * taken(leaf, 1 - torch.tensor(CONFIDENCE), numbers) * unlabeled.valid
        learned = weight * (best >= 0.95)
        assert 0.1 < float(learned.sum() / weight.sum()) < 0.9
        weight, learned, leaf = (torch.where(boxes, partner(t), t) for t in (weight, learned, leaf))
        expected = method.loss(on_strong, Target(learned, leaf), {}) / weight.sum()
        torch.testing.assert_close(found.parts["unlabeled"], expected)
        known = labeled.leaf >= 0
        supervised = method.loss(on_labeled, Target(known.float(), labeled.leaf * known), {}) / step.labeled_pixels
        torch.testing.assert_close(found.total, supervised + 5 * expected)
        method.bank.update(method.student.leaf_logits(on_labeled), labeled.leaf, alone)
        torch.testing.assert_close(bank.confidence, method.bank.confidence)

    @pytest.mark.parametrize("mixed", [0.0, 1.0])
    def test_the_loss_is_a_weighted_mean(self, monkeypatch, mixed):
        """Were each pixel's loss 1, so would be any weighted mean of them."""
        method = made("ael", "threshold", view=ViewConfig(cutmix=mixed), ael=AELConfig(area=0.01))
        method.bank.confidence.copy_(torch.tensor(CONFIDENCE))
        monkeypatch.setattr(Loss, "__call__", lambda _, logits, target, plan: target.weight.sum())
        assert float(method.losses(a_step(method)).parts["unlabeled"]) == pytest.approx(1.0)

    def test_a_part_of_a_step_counts_as_much_as_it_has_pixels(self):
        method = made("ael")
        step = a_step(method)
        whole = method.losses(step).parts["unlabeled"]
        half = made("ael").losses(replace(step, unlabeled_pixels=2 * step.unlabeled_pixels)).parts["unlabeled"]
        torch.testing.assert_close(half, whole / 2)

    def test_processes_share_one_mean(self):
        """Another one has as many pixels, which weigh three times as much."""
        method = made("ael")
        step = a_step(method)
        alone = method.losses(step).parts["unlabeled"]
        method = made("ael")
        method.gather = lambda tensor: torch.stack([tensor, tensor * torch.tensor([3.0, 1.0])])
        torch.testing.assert_close(method.losses(step).parts["unlabeled"], alone * 2 / 4)

    def test_what_is_drawn_for_cutting_and_pasting_differs(self):
        plan = made("ael").plan(5, 0.5, (0, 1), (0, 1))
        chances = [tuple(row) for name in ("mix/chance", "paste/chance") for row in plan[name].tolist()]
        assert len(set(chances)) == 4

    def test_the_bank_follows_the_labelled_views_and_is_in_its_state(self):
        method, other = made("ael"), made("ael")
        method.losses(a_step(method))
        assert (method.bank.confidence > 0).all()  # all classes are there
        assert method.bank.updates.tolist() == [1] * 5
        where = other.bank.confidence.data_ptr()
        other.load_state_dict(method.state_dict())
        assert other.bank.confidence.data_ptr() == where  # where a captured step finds it
        assert torch.equal(other.bank.confidence, method.bank.confidence)
        assert torch.equal(other.bank.updates, method.bank.updates)

    def test_pixels_are_pasted_with_their_labels(self):
        method = made("ael", ael=AELConfig(paste=1.0, area=0.0))
        method.bank.confidence.copy_(torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0]) * 1000)  # class 0 is always drawn
        step = a_step(method)
        views, pasted = step.labeled, method._pasted(step).labeled
        theirs = partner(views.leaf) == 0
        assert torch.equal(pasted.leaf, torch.where(theirs, 0, views.leaf))
        assert torch.equal(pasted.image, torch.where(theirs[:, None], partner(views.image), views.image))
        assert theirs[:2].any()
        step.plan["paste/is"].zero_()
        assert torch.equal(method._pasted(step).labeled.image, views.image)

    def test_how_often_is_pasted(self):
        method = made("ael", ael=AELConfig(paste=0.3))
        flags = method.plan(0, 0.0, tuple(range(2000)), (0,))["paste/is"]
        assert abs(flags.mean() - 0.3) < 0.04

    def test_boxes_go_where_the_partner_shows_the_class(self):
        method = made("ael", ael=AELConfig(area=0.01))
        method.bank.confidence.copy_(torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]) * 1000)
        step = a_step(method)
        seen = torch.zeros(3, 36, 36, dtype=torch.int64)
        seen[1, 20:24, 5:9] = 2  # the partner of view 0
        plan = dict(step.plan)
        plan["strong/boxes"] = torch.tensor([[0, 0, 10, 8], [1, 2, 9, 9], [0, 0, 4, 4]], dtype=torch.int32)
        numbers = lots(plan["mix/seeds"], 36 * 36).view_as(seen)
        found = method._adapted(seen, torch.ones_like(seen, dtype=torch.bool), numbers, plan)
        top, left, bottom, right = found["boxes"][0].tolist()
        assert (bottom - top, right - left) == (10, 8)
        assert top <= 23
        assert bottom > 20
        assert left <= 8
        assert right > 5
        padding = method._adapted(seen, torch.zeros_like(seen, dtype=torch.bool), numbers, plan)
        assert torch.equal(padding["boxes"], plan["strong/boxes"])  # it shows no class, whatever the teacher sees
        assert found["boxes"].dtype == torch.int32
        assert found["factors"] is plan["strong/factors"]

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"momentum": 1.5}, "method.ael.momentum is 1.5, expected a number from 0 to 1"),
            ({"area": -0.1}, "method.ael.area is -0.1, expected a number from 0 to 1"),
            ({"gamma": -1.0}, "method.ael.gamma is -1.0, expected 0 or more"),
        ],
    )
    def test_wrong_options(self, options, says):
        with pytest.raises(ConfigError, match=says):
            made("ael", ael=AELConfig(**options))

    def test_neighbours_to_paste_between_are_in_one_process(self):
        c = config(train={"labeled_batch": 6, "unlabeled_batch": 4}, method={"name": "ael"})
        data = open_dataset(c.data)
        check(c, data, 1)
        with pytest.raises(ConfigError, match="labeled_batch is 6, so each of 2 parts has 3; ael pastes between"):
            check(c, data, 2)
        check(replace(c, method=replace(c.method, ael=AELConfig(paste=0.0))), data, 2)


# ---- the bank --------------------------------------------------------------------------------------------------------


def test_the_bank_by_hand():
    """Two classes: probabilities of the true one 0.8 and 0.6, then 0.4; the other class is not seen at first."""

    def logits(*probs):
        return torch.tensor([[p, 1 - p] for p in probs]).log().T[None, :, None]

    bank = Bank(2, 0.9, CPU)
    bank.update(logits(0.8, 0.6, 0.1), torch.tensor([[[0, 0, -1]]]), alone)
    assert bank.confidence.tolist() == pytest.approx([0.7, 0.0])
    bank.update(logits(0.4, 0.3), torch.tensor([[[0, 1]]]), alone)
    assert bank.confidence.tolist() == pytest.approx([0.55, 0.7])  # the mean of 0.7 and 0.4; 1 - 0.3
    assert bank.updates.tolist() == [2, 1]
    bank.updates.fill_(1000)
    bank.update(logits(1.0, 0.3), torch.tensor([[[0, -1]]]), alone)
    assert bank.confidence.tolist() == pytest.approx([0.9 * 0.55 + 0.1, 0.7])


def test_processes_fill_one_bank():
    g = torch.Generator().manual_seed(0)
    logits, leaf = torch.randn(4, 3, 2, 2, generator=g), torch.randint(-1, 3, (4, 2, 2), generator=g)
    whole, parts, told = Bank(3, 0.9, CPU), [Bank(3, 0.9, CPU) for _ in range(2)], []
    whole.update(logits, leaf, alone)
    halves = [(logits[k : k + 2], leaf[k : k + 2]) for k in (0, 2)]
    for half in halves:
        Bank(3, 0.9, CPU).update(*half, lambda tensor: told.append(tensor) or tensor[None])
    for bank, half in zip(parts, halves, strict=True):
        bank.update(*half, lambda _: torch.stack(told))
        torch.testing.assert_close(bank.confidence, whole.confidence)


def test_sampling_rates():
    method = made("ael")
    method.bank.confidence.copy_(torch.tensor([0.2, 0.6, 1.0, 0.8, 0.2]))
    assert method.rates().tolist() == pytest.approx([1.0, 0.5, 0.0, 0.25, 1.0])
    method.options.beta = 0.5
    assert method.rates().tolist() == pytest.approx([1.0, 0.5**0.5, 0.0, 0.5, 1.0])


def test_pixels_are_taken_at_the_rate_of_their_class():
    leaf = torch.arange(4).view(4, 1, 1).expand(4, 100, 100)
    rates = torch.tensor([1.0, 0.5, 0.0, 0.25])
    numbers = lots(torch.tensor([1, 2, 3, 4]), 10000).view(4, 100, 100)
    shares = taken(leaf, rates, numbers).float().mean((1, 2))
    assert shares[0] == 1
    assert shares[2] == 0
    assert shares.tolist() == pytest.approx(rates.tolist(), abs=0.02)
    high = numbers[1] > numbers[1].median()  # the largest moved a box, and are taken as often as others
    assert taken(leaf, rates, numbers)[1][high].float().mean() == pytest.approx(0.5, abs=0.03)


def test_classes_are_drawn_by_a_softmax_of_what_they_lack():
    method = made("ael")
    confidence = torch.tensor([0.1, 0.9, 0.5, 0.0, 0.4])
    leaf = torch.tensor([[0, 1, 2, 4]]).expand(20000, 1, 4)  # class 3, which lacks most, is not there
    chance = torch.from_numpy(method._chance("x", 0, range(20000)))
    drawn = choose_class(confidence, leaf, chance, 0.2)
    shares = torch.bincount(drawn, minlength=5) / len(drawn)
    lack = (1 - confidence)[[0, 1, 2, 4]].softmax(0)
    assert shares[3] == 0
    assert shares[[0, 1, 2, 4]].tolist() == pytest.approx(lack.tolist(), abs=0.015)


def test_a_class_must_cover_the_area():
    leaf = torch.tensor([[[0, 0, 0, 1]], [[-1, -1, -1, 2]]])
    chance = torch.zeros(2, 3)
    assert choose_class(torch.tensor([0.9, 0.0, 0.5]), leaf, chance, 0.2).tolist() == [1, 2]
    assert choose_class(torch.tensor([0.9, 0.0, 0.5]), leaf, chance, 0.5).tolist() == [0, -2]


def test_boxes_are_moved_inside_the_view():
    wanted = torch.zeros(4, 6, 8, dtype=torch.bool)
    wanted[0, 0, 7] = wanted[1, 3, 4] = wanted[2, 3, 4] = True
    boxes = torch.tensor([[2, 1, 4, 4], [0, 0, 2, 2], [0, 0, 0, 0], [1, 1, 3, 3]], dtype=torch.int32)
    numbers = torch.arange(48).view(1, 6, 8).expand(4, 6, 8)
    found = moved_to(boxes, wanted, numbers)
    assert found.tolist() == [[0, 5, 2, 8], [2, 3, 4, 5], [0, 0, 0, 0], [1, 1, 3, 3]]
    wanted[1, 5, 7] = True  # a larger number
    assert moved_to(boxes, wanted, numbers)[1].tolist() == [4, 6, 6, 8]


def test_the_plan_of_the_view_stays():
    method = made("ael")
    step = a_step(method)
    before = {name: tensor.clone() for name, tensor in part(step.plan, "strong").items()}
    method.losses(step)
    assert all(torch.equal(tensor, before[name]) for name, tensor in part(step.plan, "strong").items())
