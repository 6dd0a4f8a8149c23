"""Methods in which two networks teach each other."""

import copy
import math
from dataclasses import replace
from math import exp, log

import pytest
import torch

from logicdiag.data.open import open_dataset
from logicdiag.data.views import partner
from logicdiag.engine.distributed import World
from logicdiag.engine.trainer import Trainer
from logicdiag.errors import ConfigError, RunError
from logicdiag.methods.build import build_method
from logicdiag.methods.method import Setting
from logicdiag.methods.mutual import Logits, together
from logicdiag.plan import part
from logicdiag.pseudo.target import Target
from tests.engine.small import config

from .every import steps
from .tester import SIZE, H, MethodTester, a_step, made, network

THRESHOLD = 0.53
"""Of networks in training, some pixels are surer, and some are not."""


def leaves(logits):
    """How sure threshold psi is, and of what, by hand."""
    return logits.detach().sigmoid()[:, list(H.leaf_indices)].max(1)


def mean(method, logits, labels, counts, boxes=None):
    """The loss against labels that `leaves` gave, over the pixels that count."""
    sure, leaf = labels
    weight = ((sure >= THRESHOLD) & counts).float()
    assert weight.any()
    if boxes is not None:
        weight, leaf = (torch.where(boxes, partner(t), t) for t in (weight, leaf))
    return method.loss(logits, Target(weight, leaf), {}) / counts.sum()


def supervised(method, logits, step):
    counts = step.labeled.leaf >= 0
    return method.loss(logits, Target(counts.float(), step.labeled.leaf * counts), {}) / counts.sum()


def gradients(method, found):
    """Of each network, in one row."""
    found.total.backward()
    rows = [torch.cat([p.grad.flatten() for p in student.parameters()]) for student in method.students]
    for student in method.students:
        student.zero_grad()
    return rows


def shifted_labels(method, name):
    """Let the labels of one name be other ones."""
    inner = method.labels

    def labels(asked, *args):
        found = inner(asked, *args)
        if asked != name:
            return found
        other = [Target(t.weight, (t.leaf + 1) % len(H.leaves)) for t in (found.labeled, found.unlabeled)]
        return found._replace(labeled=other[0], unlabeled=other[1])

    method.labels = labels


def pixels(logits):
    """The same logits at every pixel of three views."""
    return torch.tensor(logits)[None, :, None, None].expand(3, -1, SIZE, SIZE)


FIRST, SECOND = (2.0, 0.0, 1.0, -1.0, 0.0), (0.0, 3.0, -1.0, 0.5, 0.0)
"""Flat logits of the five leaves: the first network is for leaf 0, the second for leaf 1."""


def cross_entropy(logits, leaf):
    return log(sum(map(exp, logits))) - logits[leaf]


class MutualTester:
    def test_networks_start_apart_and_the_first_as_in_other_methods(self):
        method = made(self.name)
        first, second = method.students
        assert any((a != b).any() for a, b in zip(first.parameters(), second.parameters(), strict=True))
        for mine, theirs in zip(first.parameters(), made("fixmatch").student.parameters(), strict=True):
            assert torch.equal(mine, theirs)

    def test_networks_that_start_alike_are_refused(self):
        method, one = made(self.name), network()
        with pytest.raises(ConfigError, match=f"method.name is {self.name}, whose networks .* must start apart"):
            build_method(Setting([one, copy.deepcopy(one)], method.psi, method.loss, method.config, method.views, SIZE))

    def test_what_is_drawn_for_labels_differs(self):
        plan = made(self.name).plan(5, 0.5, (0, 1), (0, 1))
        seeds = [seed for name in made(self.name).label_names for seed in plan[f"{name}/seeds"].tolist()]
        assert len(seeds) == len(set(seeds)) == 4 * len(made(self.name).label_names)

    @pytest.mark.parametrize("psi", ["threshold", "diagnosis"])
    def test_labels_teach_the_other_network_alone(self, psi):
        """Other labels of one network change the gradient of the other, and none of its own."""
        names = made(self.name).label_names
        for number, name in enumerate(names):
            method = made(self.name, psi)
            shifted_labels(method, name)
            changed = gradients(method, method.losses(a_step(method)))
            method = made(self.name, psi)
            plain = gradients(method, method.losses(a_step(method)))
            own, other = number % 2, 1 - number % 2
            assert torch.equal(changed[own], plain[own]), name
            assert not torch.allclose(changed[other], plain[other]), name

    def test_labels_of_both_kinds_of_views_teach(self):
        """Of labelled ones, too, which have their true labels beside them."""
        method = made(self.name)
        inner, seen = method.summed, []

        def summed(logits, labels, step):
            for one, value in zip(logits, inner(logits, labels, step), strict=True):
                [gradient] = torch.autograd.grad(value, one, retain_graph=True)
                seen.append(gradient.flatten(1).any(1).all())
            return inner(logits, labels, step)

        method.summed = summed
        method.losses(a_step(method))
        assert len(seen) >= 4
        assert all(seen)

    def test_no_gradient_goes_through_a_label(self):
        """With the second network left out of the losses, nothing reaches it."""
        method = made(self.name)
        inner = method.cross_loss
        calls = []

        def cross_loss(logits, labels, step):
            calls.append(inner(logits, labels, step))
            return calls[-1] if len(calls) % 2 else calls[-1] * 0

        method.cross_loss = cross_loss
        seen = []
        labeled = method.labeled_loss
        method.labeled_loss = lambda *args: seen.append(labeled(*args)) or (seen[-1] if len(seen) == 1 else 0.0)
        first, second = gradients(method, method.losses(a_step(method)))
        assert first.any()
        assert not second.any()


class TestCPS(MethodTester, MutualTester):
    name = "cps"

    def test_against_the_equations(self):
        step = a_step(made("cps"))
        found = made("cps", "threshold", threshold=THRESHOLD).losses(step)
        method = made("cps", "threshold", threshold=THRESHOLD)
        mixed, boxes = method.strong(step.unlabeled.image, part(step.plan, "mixed"))
        weak = [leaves(copy.deepcopy(student).eval()(step.unlabeled.image)) for student in method.students]
        seen = [student(torch.cat([step.labeled.image, mixed])).split(3) for student in method.students]
        known, valid = step.labeled.leaf >= 0, step.unlabeled.valid
        crossed = sum(
            mean(method, seen[me][0], leaves(seen[other][0]), known)
            + mean(method, seen[me][1], weak[other], valid, boxes)
            for me, other in ((0, 1), (1, 0))
        )
        labeled = sum(supervised(method, on_labeled, step) for on_labeled, _ in seen)
        torch.testing.assert_close(found.parts["labeled"], labeled)
        torch.testing.assert_close(found.parts["unlabeled"], crossed)
        torch.testing.assert_close(found.total, labeled + 5 * crossed)
        own = mean(method, seen[0][1], weak[0], valid, boxes)  # its own labels would be seen
        assert not torch.isclose(own, mean(method, seen[0][1], weak[1], valid, boxes), rtol=1e-3)

    def test_a_small_case(self):
        """Each learns the other's leaf, on labelled and on unlabelled views."""
        method = made("cps", "threshold", "flat")
        said = (pixels(FIRST), pixels(SECOND))
        method.infer = lambda image, which: said[which]
        method.predict = lambda image, which: torch.cat([said[which], said[which]])
        found = method.losses(a_step(method))
        expected = 2 * (cross_entropy(FIRST, 1) + cross_entropy(SECOND, 0))
        assert float(found.parts["unlabeled"]) == pytest.approx(expected, rel=1e-5)

    def test_the_average_is_never_asked(self):
        method = made("cps", teacher_decay=0.9)
        plain = method.losses(a_step(method)).total
        method = made("cps", teacher_decay=0.9)
        with torch.no_grad():
            for parameter in method.teacher.parameters():
                parameter.fill_(torch.nan)
        assert torch.equal(method.losses(a_step(method)).total, plain)

    def test_views_keep_their_colours(self):
        assert made("cps").plan(5, 0.5, (0, 1), (0, 1)).keys() == {
            "weight", "psi/1/seeds", "psi/2/seeds", "mixed/boxes",
        }  # fmt: skip


class TestMKD(MethodTester, MutualTester):
    name, parts = "mkd", ("labeled", "unlabeled", "distilled", "crossed")

    def test_a_small_case(self):
        """Teachers are for leaves 2 and 3: each student learns the other's teacher, and the other student."""
        method = made("mkd", "threshold", "flat")
        said, taught = (pixels(FIRST), pixels(SECOND)), (pixels((0.0, 0, 9, 0, 0)), pixels((0.0, 0, 0, 9, 0)))
        method._forward = lambda which, *_: Logits(said[which], said[which])
        method.teach = lambda image, which: torch.cat([taught[which], taught[which]])
        found = method.losses(a_step(method))
        distilled = cross_entropy(FIRST, 3) + cross_entropy(SECOND, 2)
        crossed = cross_entropy(FIRST, 1) + cross_entropy(SECOND, 0)
        assert float(found.parts["distilled"]) == pytest.approx(distilled, rel=1e-5)
        assert float(found.parts["crossed"]) == pytest.approx(crossed, rel=1e-5)
        assert float(found.parts["unlabeled"]) == pytest.approx(1.5 * distilled + crossed, rel=1e-5)

    def test_against_the_equations(self):
        step = a_step(made("mkd"))
        found = self.apart().losses(step)
        method = self.apart()
        strong, boxes = method.strong(step.unlabeled.image, part(step.plan, "strong"))
        known, valid = step.labeled.leaf >= 0, step.unlabeled.valid
        taught, seen = [], []
        for which, (student, teacher) in enumerate(zip(method.students, method.teachers, strict=True)):
            taught.append([leaves(teacher.model(views.image)) for views in (step.labeled, step.unlabeled)])
            features = student.features(torch.cat([step.labeled.image, strong]))
            kept = [step.plan[f"kept/{which}/{level}"][:, :, None, None] for level in range(2)]
            dropped = [torch.cat([f[:3], f[3:] * kept[level] * 2]) for level, f in enumerate(features)]
            seen.append(student.decode(tuple(dropped), (SIZE, SIZE)).split(3))
        mixed_valid = torch.where(boxes, partner(valid), valid)
        assert mixed_valid.sum() == valid.sum()  # what both means are over
        share = known.sum() / (known.sum() + valid.sum())
        distilled = crossed = 0.0
        for me, other in ((0, 1), (1, 0)):
            on_labeled, on_strong = seen[me]
            distilled += share * mean(method, on_labeled, taught[other][0], known)
            distilled += (1 - share) * mean(method, on_strong, taught[other][1], valid, boxes)
            crossed += share * mean(method, on_labeled, leaves(seen[other][0]), known)
            crossed += (1 - share) * mean(method, on_strong, leaves(seen[other][1]), mixed_valid)
        labeled = sum(supervised(method, on_labeled, step) for on_labeled, _ in seen)
        torch.testing.assert_close(found.parts["labeled"], labeled)
        torch.testing.assert_close(found.parts["distilled"], distilled)
        torch.testing.assert_close(found.parts["crossed"], crossed)
        torch.testing.assert_close(found.total, labeled + 5 * (1.5 * distilled + crossed))

    def apart(self):
        """Students that have moved away from their teachers."""
        method = made("mkd", "threshold", threshold=THRESHOLD)
        g = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for student in method.students:
                for parameter in student.parameters():
                    parameter.add_(0.05 * torch.randn(parameter.shape, generator=g))
        return method

    def test_students_label_what_their_views_show(self):
        """Inside of a box, padding is the partner's; labels of teachers are of whole views, and mixed afterwards."""
        method = made("mkd")
        step = a_step(method)
        valid = step.unlabeled.valid.clone()
        valid[0, :18] = False
        step, inner, seen = replace(step, unlabeled=replace(step.unlabeled, valid=valid)), method.labels, {}
        method.labels = lambda name, logits, asked, step: seen.update({name: asked}) or inner(name, logits, asked, step)
        method.losses(step)
        _, boxes = method.strong(step.unlabeled.image, part(step.plan, "strong"))
        mixed = torch.where(boxes, partner(valid), valid)
        assert not torch.equal(mixed, valid)
        for which in (1, 2):
            assert torch.equal(seen[f"psi/teacher{which}"], valid)
            assert torch.equal(seen[f"psi/student{which}"], mixed)

    def test_students_lose_other_channels(self):
        plan = made("mkd").plan(5, 0.5, (0, 1, 2), (0, 1, 2))
        for level in range(2):
            assert (plan[f"kept/0/{level}"] != plan[f"kept/1/{level}"]).any()

    def test_wrong_dropout(self):
        with pytest.raises(ConfigError, match="method.feature_dropout is 1.0, expected from 0 to below 1"):
            made("mkd", feature_dropout=1.0)


def test_statistics_add_up():
    one = {"counted": (torch.tensor(1.0), torch.tensor(4))}
    other = {"counted": (torch.tensor(2.5), torch.tensor(6))}
    assert together(one, other) == {"counted": (3.5, 10)}


# ---- in training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cps", "mkd"])
@pytest.mark.parametrize(
    "changes",
    [
        {"psi": {"strategy": "soft"}},
        {"psi": {"families": "CE"}},
        {"loss": {"points": 200, "points_by": "uncertain"}, "train": {"labeled_batch": 2, "unlabeled_batch": 4}},
        {"train": {"accumulate": 2, "labeled_batch": 4, "unlabeled_batch": 4, "precision": "bf16"}},
        {"data": {"views": {"cutmix": 0.0}}, "optimizer": {"clip": 0.1}},
    ],
    ids=["soft", "labels", "points", "accumulated", "unmixed"],
)
def test_options(name, changes):
    made = training(name, **changes)
    before = [[p.detach().clone() for p in student.parameters()] for student in made.method.students]
    for line in steps(made, 2):
        assert math.isfinite(line["loss"])
    for old, student in zip(before, made.method.students, strict=True):
        assert all((was != now).any() for was, now in zip(old, student.parameters(), strict=True))


def training(name, **changes):
    c = config(**{**changes, "data": {"val": None, **changes.get("data", {})}, "method": {"name": name}})
    return Trainer(c, open_dataset(c.data), World(), None, None)


@pytest.mark.parametrize("which", [0, 1])
def test_a_network_that_diverged_is_not_saved(which):
    made = training("cps")
    made._refuse_no_numbers()
    with torch.no_grad():
        made.method.students[which].classifier.bias[0] = torch.nan
    with pytest.raises(RunError):
        made._refuse_no_numbers()


def test_the_seed_decides_on_both_networks():
    one, again, other = (training("mkd", train={"seed": seed}).method.students for seed in (1, 1, 2))
    for mine, same, different in zip(one, again, other, strict=True):
        assert torch.equal(mine.classifier.weight, same.classifier.weight)
        assert not torch.equal(mine.classifier.weight, different.classifier.weight)


def test_weights_of_a_whole_network_are_refused(tmp_path):
    """Of an encoder they are welcome: the decoders start apart."""
    state = training("supervised").model.state_dict()
    torch.save(state, tmp_path / "whole.pth")
    torch.save({k.removeprefix("encoder.body."): v for k, v in state.items() if "body" in k}, tmp_path / "encoder.pth")
    with pytest.raises(ConfigError, match="method.name is cps, .* but model.weights holds a whole network"):
        training("cps", model={"weights": str(tmp_path / "whole.pth")})
    first, second = training("cps", model={"weights": str(tmp_path / "encoder.pth")}).method.students
    for mine, theirs in zip(first.encoder.parameters(), second.encoder.parameters(), strict=True):
        assert torch.equal(mine, theirs)
