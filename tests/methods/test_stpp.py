"""What is ST++'s own: the ranking of images, and stages."""

import copy
from dataclasses import replace

import pytest
import torch

from logicdiag.errors import ConfigError
from logicdiag.methods.config import StagesConfig
from logicdiag.methods.stpp import ALL, LABELS, RELIABLE, mean_iou, most_stable, stability
from logicdiag.plan import moved

from .tester import MethodTester, a_step, made, views


class FakeRun:
    """A run of ten steps and four images: what a method asks of it is kept."""

    steps = 10

    def __init__(self, scores=(0.1, 0.9, 0.8, 0.2)):
        self.scores, self.restarted, self.networks = list(scores), 0, None

    def measure(self, networks, score):
        assert score is stability
        self.networks = [copy.deepcopy(network.state_dict()) for network in networks]
        return self.scores

    def restart(self):
        self.restarted += 1


def shifted(method, by):
    """As after some training: the average is not where the student is."""
    with torch.no_grad():
        for times, networks in enumerate((method.students, method.teachers), 1):
            for network in networks:
                for parameter in network.parameters():
                    parameter.add_(times * by)
    return copy.deepcopy(method.evaluated.state_dict())


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


class TestSTPP(MethodTester):
    name = "st++"
    halfway = 3.0  # it has no ramp

    def test_lambda_holds_in_full_when_a_stage_begins(self):
        """Steps 30 to 59 of 100 are the second stage, which this ramp would cover from 0 to lambda."""
        method, ramped = (made(name, weight=2.0, ramp=(0.3, 0.6)) for name in ("st++", "fixmatch"))
        assert method.restarts(100) == (0, 30, 60)
        for index, elsewhere in {30: 0.0, 45: 1.0, 59: 2 * 29 / 30, 60: 2.0, 99: 2.0}.items():
            assert float(method.plan(index, index / 100, (0,), (0,))["weight"]) == 2.0
            assert float(ramped.plan(index, index / 100, (0,), (0,))["weight"]) == pytest.approx(elsewhere)

    @pytest.mark.parametrize("decay", [0.0, 0.9])
    def test_its_stages(self, decay):
        method, run = made("st++", teacher_decay=decay), FakeRun()
        first = copy.deepcopy(method.student.state_dict())
        assert method.restarts(10) == (0, 3, 6)
        assert method.pauses(10) == (1, 2, 3, 6)
        assert (method.stage, method.offered) == (LABELS, ())
        seen = []
        for index in (1, 2, 3):
            seen.append(shifted(method, 0.1))
            method.pause(index, run)
        assert len(run.networks) == 3  # two snapshots, and the last
        assert all(equal(one, other) for one, other in zip(run.networks, seen, strict=True))
        assert (method.stage, method.offered, method.began) == (RELIABLE, [1, 2], 3)
        assert equal(method.labeler.state_dict(), seen[-1])
        assert equal(method.student.state_dict(), first)
        assert equal(method.evaluated.state_dict(), first)
        second = shifted(method, 0.3)
        method.pause(6, run)
        assert (method.stage, method.offered, method.began) == (ALL, None, 6)
        assert equal(method.labeler.state_dict(), second)
        assert equal(method.student.state_dict(), first)
        assert run.restarted == 2

    @pytest.mark.parametrize(("count", "snapshots"), [(2, (15,)), (3, (10, 20)), (4, (8, 15, 22))])
    def test_snapshots_are_evenly_apart(self, count, snapshots):
        """The last of them is the network that the first stage ends with."""
        method = made("st++", stages=StagesConfig(snapshots=count))
        assert method.pauses(100) == (*snapshots, 30, 60)

    def test_the_student_may_go_on(self):
        method, run = made("st++", teacher_decay=0.9, stages=StagesConfig(anew=False)), FakeRun()
        assert method.restarts(10) == (0,)
        method.pause(1, run)
        kept = shifted(method, 0.1)
        method.pause(3, run)
        assert equal(method.evaluated.state_dict(), kept)
        assert equal(method.labeler.state_dict(), kept)
        assert (method.began, run.restarted) == (0, 0)

    @pytest.mark.parametrize("decay", [0.0, 0.9])
    def test_labels_are_those_of_the_stage_before(self, decay):
        method, image = made("st++", teacher_decay=decay), views(False).image
        before = method.teach(image)
        shifted(method, 0.1)
        assert torch.equal(method.teach(image), before)
        method.pause(1, FakeRun())
        expected = copy.deepcopy(method.evaluated).eval()(image)
        method.pause(3, FakeRun())
        shifted(method, 0.3)
        torch.testing.assert_close(method.teach(image), expected.detach())
        method.losses(a_step(method)).total.backward()
        assert all(parameter.grad is None for parameter in method.labeler.parameters())
        assert not any(module.training for module in method.labeler.modules())

    def test_how_much_of_a_run_has_no_unlabelled_views(self):
        method = made("st++")
        assert method.restarts(1000)[1] == 1000 * method.labels_alone

    def test_a_stage_on_labels_alone(self):
        method, plain = made("st++"), made("supervised")
        step = a_step(method)
        plan = moved(method.plan(0, 0.0, (0, 1, 2), ()), torch.device("cpu"))
        found = method.losses(replace(step, unlabeled=None, plan=plan))
        torch.testing.assert_close(found.total, plain.losses(step).total)
        assert found.names == method.losses(step).names[: len(found.names)]

    def test_the_average_begins_with_its_stage(self):
        method = made("st++", teacher_decay=0.9)
        method.began = 100
        assert float(method.plan(101, 0.5, (0,), (0,))["decay"]) == pytest.approx(0.5)
        shifted(method, 0.0)
        with torch.no_grad():
            method.student.classifier.bias.add_(1)
        method.follow(100, {})
        assert torch.equal(method.evaluated.classifier.bias, method.student.classifier.bias)

    @pytest.mark.parametrize("until", [(1,), (1, 2, 3), (1, 2, 3, 6)])
    def test_its_stage_is_in_its_state(self, until):
        method, other = (made("st++", teacher_decay=0.9) for _ in range(2))
        shifted(other, 0.5)
        other.first = {}
        for index in until:
            shifted(method, 0.1)
            method.pause(index, FakeRun())
        other.load_state_dict(copy.deepcopy(method.state_dict()))
        assert (other.stage, other.began, other.offered) == (method.stage, method.began, method.offered)
        assert equal(other.labeler.state_dict(), method.labeler.state_dict())
        assert len(other.snapshots) == len(method.snapshots)
        if method.stage < ALL:
            one, two = FakeRun(), FakeRun()
            index = 3 if method.stage == LABELS else 6
            method.pause(index, one)
            other.pause(index, two)
            assert equal(method.student.state_dict(), other.student.state_dict())
            if one.networks:
                assert all(equal(a, b) for a, b in zip(one.networks, two.networks, strict=True))

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"shares": (0.5, 0.5, 0.5)}, r"method.stages.shares is \[0.5, 0.5, 0.5\], expected three numbers above 0"),
            ({"shares": (0.5, 0.5, 0.0)}, "method.stages.shares is .* expected three numbers above 0"),
            ({"snapshots": 1}, "method.stages.snapshots is 1, expected a whole number of at least 2"),
            ({"reliable": 0.0}, "method.stages.reliable is 0.0, expected a share above 0, up to 1"),
        ],
    )
    def test_wrong_options(self, options, says):
        with pytest.raises(ConfigError, match=says):
            made("st++", stages=StagesConfig(**options))

    def test_too_few_steps(self):
        with pytest.raises(ConfigError, match="train.steps is 3, which method.stages.shares .* begin at 0, 1 and 2;"):
            made("st++").pauses(3)


# ---- the ranking -----------------------------------------------------------------------------------------------------


def test_mean_iou_by_hand():
    one = torch.tensor([[0, 0, 1, 1], [3, 3, 3, 3]])
    other = torch.tensor([[0, 1, 1, 1], [3, 3, 0, 0]])
    # class 0: 1 of 4; class 1: 2 of 3; class 3: 2 of 4; class 2 stands in neither
    assert mean_iou(one, other) == pytest.approx((1 / 4 + 2 / 3 + 1 / 2) / 3)
    assert mean_iou(one, one) == 1
    assert mean_iou(torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.int64)) == 0


def test_stability_is_the_mean_over_earlier_networks():
    last = torch.tensor([[0, 0, 1, 1]])
    same, other = last.clone(), torch.tensor([[0, 0, 0, 0]])  # 1, and (2/4 + 0) / 2
    assert stability([same, other, last]) == pytest.approx((1 + 0.25) / 2)
    assert stability([other, last]) == pytest.approx(0.25)
    third = torch.tensor([[0, 1, 1, 1]])  # against the last (1/2 + 2/3) / 2; against `other`, another number
    assert stability([other, third, last]) == pytest.approx((0.25 + 7 / 12) / 2)
    assert stability([last, third, other]) != pytest.approx((0.25 + 7 / 12) / 2)


@pytest.mark.parametrize(
    ("share", "chosen"), [(0.5, [1, 3]), (1.0, [0, 1, 2, 3, 4]), (0.2, [1]), (0.01, [1]), (0.6, [1, 2, 3])]
)
def test_the_most_stable_images(share, chosen):
    """In the order of the list; of two equal ones, the first ranks first."""
    assert most_stable([0.2, 0.9, 0.5, 0.9, 0.1], share) == chosen
