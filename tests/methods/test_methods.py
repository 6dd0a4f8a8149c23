from unittest.mock import Mock

import pytest
import torch

from logicdiag.data.config import ViewConfig
from logicdiag.data.views import partner
from logicdiag.errors import ConfigError, OptionError
from logicdiag.methods.build import METHODS
from logicdiag.methods.config import LossConfig
from logicdiag.plan import part
from logicdiag.pseudo.target import Target

from .tester import ALWAYS_MIXED, SIZE, H, MethodTester, a_step, made, planned, views

THRESHOLD = 0.95
"""Some pixels are surer, and some are not."""


def apart(name, **options):
    """A method with threshold psi whose student has moved away from its teacher."""
    method = made(name, "threshold", threshold=THRESHOLD, **options)
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in method.student.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=g))
    return method


def taught(method, step):
    """Weights and leaves that the teacher gives to the weak views, by hand."""
    with torch.no_grad():
        weak = method.teacher.model(step.unlabeled.image).sigmoid()
    sure, leaf = weak[:, list(H.leaf_indices)].max(1)
    weight = ((sure >= THRESHOLD) & step.unlabeled.valid).float()
    assert 0.1 < float(weight[step.unlabeled.valid].mean()) < 0.9
    return weight, leaf


def inside(boxes, *tensors):
    return tuple(torch.where(boxes, partner(tensor), tensor) for tensor in tensors)


def unlabelled_mean(method, logits, target, step):
    return method.loss(logits, Target(*target), {}) / step.unlabeled.valid.sum()


def labelled_mean(method, logits, step):
    counts = step.labeled.leaf >= 0
    return method.loss(logits, Target(counts.float(), step.labeled.leaf * counts), {}) / counts.sum()


class TestSupervised(MethodTester):
    name, parts = "supervised", ("labeled",)

    def unlabeled(self, parts):
        return 0.0

    def test_it_is_the_mean_over_labelled_pixels(self):
        method = made("supervised", loss=LossConfig(nodes="sum", leaf=0.0))
        step = a_step(method)
        logits = method.predict(step.labeled.image)
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        paths = torch.zeros_like(logits)
        for i, leaf in enumerate(H.leaves):
            for node in H.path(leaf):
                paths[:, H.index(node)][step.labeled.leaf == i] = 1
        by_pixel = loss(logits, paths, reduction="none").sum(1)[step.labeled.leaf >= 0]
        method = made("supervised", loss=LossConfig(nodes="sum", leaf=0.0))
        torch.testing.assert_close(method.losses(step).total, by_pixel.mean())


class TestFixMatch(MethodTester):
    name = "fixmatch"

    def test_against_the_equation(self):
        """Eq. 1 and 2 by hand, threshold psi, so that some pixels count and some do not."""
        method = made("fixmatch", "threshold", threshold=THRESHOLD)
        step = a_step(method)
        found = method.losses(step)
        method = made("fixmatch", "threshold", threshold=THRESHOLD)
        with torch.no_grad():
            weak = method.student.eval()(step.unlabeled.image).sigmoid()
        method.student.train()
        strong, boxes = method.strong(step.unlabeled.image, part(step.plan, "strong"))
        logits = method.student(torch.cat([step.labeled.image, strong]))
        sure, leaf = weak[:, list(H.leaf_indices)].max(1)
        weight = ((sure >= THRESHOLD) & step.unlabeled.valid).float()
        assert 0.1 < float(weight[step.unlabeled.valid].mean()) < 0.9
        weight, leaf = (torch.where(boxes, partner(t), t) for t in (weight, leaf))
        unlabeled = method.loss(logits[3:], Target(weight, leaf), {}) / step.unlabeled.valid.sum()
        torch.testing.assert_close(found.parts["unlabeled"], unlabeled)
        torch.testing.assert_close(found.total, found.parts["labeled"] + 5 * unlabeled)
        assert found.statistics.keys() == {"counted"}

    def test_a_teacher_takes_the_place_of_the_student(self):
        method = made("fixmatch", teacher_decay=0.5)
        with torch.no_grad():
            method.student.classifier.bias.add_(100)
        torch.testing.assert_close(method.teach(views(False).image), method.teacher(views(False).image))

    def test_points(self):
        method = made("fixmatch", loss=LossConfig(points=50))
        found = method.losses(a_step(method))
        assert found.total.isfinite()


class TestMeanTeacher(MethodTester):
    name = "mean_teacher"

    def test_against_the_equation(self):
        """The teacher's labels of the weak views, mixed as the views are, and the student's logits of the mixed."""
        method, step = apart("mean_teacher"), a_step(made("mean_teacher"))
        found = method.losses(step)
        method = apart("mean_teacher")
        weight, leaf = taught(method, step)
        mixed, boxes = method.strong(step.unlabeled.image, part(step.plan, "mixed"))
        logits = method.student(torch.cat([step.labeled.image, mixed]))
        supervised = labelled_mean(method, logits[:3], step)
        consistency = unlabelled_mean(method, logits[3:], inside(boxes, weight, leaf), step)
        assert not torch.isclose(consistency, unlabelled_mean(method, logits[3:], (weight, leaf), step), rtol=0.01)
        torch.testing.assert_close(found.parts["unlabeled"], consistency)
        torch.testing.assert_close(found.total, supervised + 5 * consistency)

    def test_views_keep_their_colours(self):
        method = made("mean_teacher")
        seen = []
        method.student.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        method.losses(a_step(method))
        mixed, original = seen[-1][3:], a_step(method).unlabeled.image
        changed = (mixed != original).any(1)
        assert changed.any()
        assert torch.equal(mixed, torch.where(changed[:, None], partner(original), original))

    def test_no_decay_is_refused(self):
        with pytest.raises(ConfigError, match="0.0, but mean_teacher needs an averaged teacher"):
            made("mean_teacher", teacher_decay=0.0)


class TestUniMatch(MethodTester):
    name, parts = "unimatch", ("labeled", "unlabeled", "features")

    def test_against_the_equation(self):
        """Each strong view learns the labels mixed by its own boxes; the view whose features drop, unmixed ones."""
        method, step = apart("unimatch", teacher_decay=0.9), a_step(made("unimatch"))
        found = method.losses(step)
        method = apart("unimatch", teacher_decay=0.9)
        weight, leaf = taught(method, step)
        (first, boxes), (second, others) = (
            method.strong(step.unlabeled.image, part(step.plan, name)) for name in ("strong", "strong2")
        )
        features = method.student.features(torch.cat([step.labeled.image, step.unlabeled.image, first, second]))
        kept = [step.plan[f"kept/{level}"] for level in range(2)]
        dropped = [torch.cat([f[:3], method.dropout(f[3:6], kept[i]), f[6:]]) for i, f in enumerate(features)]
        on_labeled, *on_unlabeled = method.student.decode(tuple(dropped), (SIZE, SIZE)).split(3)
        targets = [(weight, leaf), inside(boxes, weight, leaf), inside(others, weight, leaf)]
        terms = [[unlabelled_mean(method, logits, t, step) for t in targets] for logits in on_unlabeled]
        for i, row in enumerate(terms):  # the wrong labels would be seen
            assert not any(torch.isclose(row[i], row[j], rtol=0.01) for j in range(3) if j != i)
        weak, s1, s2 = (terms[i][i] for i in range(3))
        torch.testing.assert_close(found.parts["features"], weak)
        torch.testing.assert_close(found.parts["unlabeled"], s1 / 4 + s2 / 4 + weak / 2)
        supervised = labelled_mean(method, on_labeled, step)
        torch.testing.assert_close(found.total, supervised + 5 * (s1 / 4 + s2 / 4 + weak / 2))

    def test_three_terms(self):
        method = made("unimatch", "threshold")
        step = a_step(method)
        seen = []
        inner = method.unlabeled_loss
        method.unlabeled_loss = lambda *args: seen.append(inner(*args)) or seen[-1]
        found = method.losses(step)
        first, second, dropped = seen
        expected = found.parts["labeled"] + 5 * (first / 4 + second / 4 + dropped / 2)
        torch.testing.assert_close(found.total, expected)
        assert not torch.allclose(first, second)

    def test_strong_views_differ(self):
        method, image = made("unimatch"), views(False).image
        plan = planned(method)
        (first, boxes), (second, other) = (method.strong(image, part(plan, name)) for name in ("strong", "strong2"))
        assert not torch.equal(first, second)
        assert not torch.equal(boxes, other)

    def test_feature_dropout(self):
        method = made("unimatch", feature_dropout=0.25)
        features = torch.rand(3, 4000, 2, 2) + 1
        kept = torch.rand(3, 4000) >= 0.25
        dropped = method.dropout(features, kept)
        assert torch.equal(dropped.ne(0), kept[:, :, None, None].expand_as(dropped))  # whole channels
        torch.testing.assert_close(dropped[dropped.ne(0)], (features / 0.75)[dropped.ne(0)])

    def test_dropped_channels_are_keyed_by_step_slot_and_level(self):
        method = made("unimatch", feature_dropout=0.25)
        encoder = method.student.encoder
        encoder.low_channels = encoder.high_channels = 4000
        kept = method.dropout.plan(encoder, 5, (0, 1, 7))
        assert (abs(kept["0"].mean(1) - 0.75) < 0.03).all()
        assert (kept["0"][0] != kept["0"][1]).any()
        assert (kept["0"] != kept["1"]).any()
        assert (kept["0"] != method.dropout.plan(encoder, 6, (0, 1, 7))["0"]).any()
        assert (kept["0"][2] == method.dropout.plan(encoder, 5, (7,))["0"][0]).all()

    def test_no_dropout_leaves_the_features(self):
        method, features = made("unimatch", feature_dropout=0.0), torch.rand(3, 96, 2, 2)
        assert torch.equal(method.dropout(features, planned(method)["kept/1"]), features)

    def test_only_the_weak_view_s_features_are_dropped(self):
        method = made("unimatch", feature_dropout=0.9)
        step = a_step(method)
        plain = made("unimatch", feature_dropout=0.0)
        method.student.eval()
        plain.student.eval()
        strong = torch.rand(3, 3, SIZE, SIZE)
        images = (step.labeled.image, step.unlabeled.image, strong, strong)
        found, expected = (one._forward(images, part(planned(one), "kept")) for one in (method, plain))
        for view in (0, 2, 3):
            torch.testing.assert_close(found[view], expected[view])
        assert not torch.allclose(found[1], expected[1])
        torch.testing.assert_close(expected[1], plain.student(step.unlabeled.image))

    @pytest.mark.parametrize("dropout", [-0.1, 1.0])
    def test_wrong_dropout(self, dropout):
        with pytest.raises(ConfigError, match=f"method.feature_dropout is {dropout}, expected from 0 to below 1"):
            made("unimatch", feature_dropout=dropout)


class TestAlgorithm1(MethodTester):
    name = "algorithm1"

    def test_it_has_no_teacher(self):
        with pytest.raises(ConfigError, match="method.teacher_decay is 0.9, but algorithm1 has no teacher"):
            made("algorithm1", teacher_decay=0.9)

    def test_both_are_learned_from_their_own_repaired_labels(self):
        method = made("algorithm1")
        seen = []
        inner, step = method.psi, a_step(method)
        method.psi = lambda *args: seen.append(args) or inner(*args)
        loss = method.loss
        method.loss = Mock(wraps=loss)
        found = method.losses(step)
        ((both, nothing),) = seen
        assert len(both.logits) == 6
        assert len(nothing.logits) == 0
        assert len(set(both.plan["seeds"].tolist())) == 6
        assert torch.equal(both.valid, torch.cat([step.labeled.leaf >= 0, step.unlabeled.valid]))
        logits, target, _ = method.loss.call_args_list[1].args
        assert torch.equal(both.logits, logits)
        assert not both.logits.requires_grad
        pixels = both.valid.sum()
        torch.testing.assert_close(found.parts["unlabeled"], loss(logits, target, {}) / pixels)


# ---- what they share ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ramp", "weights"),
    [
        ((0.0, 0.0), {0.0: 2.0, 0.5: 2.0, 1.0: 2.0}),
        ((0.2, 0.6), {0.0: 0.0, 0.2: 0.0, 0.3: 0.5, 0.4: 1.0, 0.6: 2.0, 0.9: 2.0}),
        ((0.5, 0.5), {0.0: 0.0, 0.49: 0.0, 0.5: 2.0, 0.9: 2.0}),
        ((0.0, 1.0), {0.0: 0.0, 0.25: 0.5, 1.0: 2.0}),
    ],
)
def test_ramp(ramp, weights):
    method = made("fixmatch", weight=2.0, ramp=ramp)
    for progress, weight in weights.items():
        assert method.weight_at(progress) == pytest.approx(weight), progress


@pytest.mark.parametrize("ramp", [(0.5, 0.2), (-0.1, 0.5), (0.0, 1.5)])
def test_wrong_ramp(ramp):
    with pytest.raises(ConfigError, match=r"method.ramp is .*expected two rising shares"):
        made("fixmatch", ramp=ramp)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.needs_unlabeled])
def test_diagnosis_needs_the_hierarchical_head(name):
    with pytest.raises(ConfigError, match="set model.head to hierarchical, or psi.name to threshold"):
        made(name, "diagnosis", "flat")


def test_wrong_name_and_decay():
    with pytest.raises(OptionError, match="method.name is 'fixmtch'.*did you mean 'fixmatch'"):
        made("fixmtch")
    for decay in (1.5, -0.5):
        with pytest.raises(
            ConfigError, match=f"method.teacher_decay is {decay}, expected a number from 0 to 1, or null"
        ):
            made("fixmatch", teacher_decay=decay)


def test_ignored_pixels_are_not_in_the_truth_degrees():
    """What the student says of labelled pixels enters; of pixels that are ignored or padding, on either side, not."""
    method, degrees = made("fixmatch"), []
    inner = method.psi._degrees
    method.psi._degrees = lambda *pixels: degrees.append(inner(*pixels)) or degrees[-1]
    step, g = a_step(method), torch.Generator().manual_seed(0)
    weak, on_labeled, other = (2 * torch.randn(3, len(H), SIZE, SIZE, generator=g) for _ in range(3))
    ignored, padding = (step.labeled.leaf < 0)[:, None], ~step.unlabeled.valid[:, None]
    for teacher, student in (
        (weak, on_labeled),
        (torch.where(padding, other, weak), torch.where(ignored, other, on_labeled)),
        (weak, torch.where(ignored, on_labeled, other)),
        (torch.where(padding, weak, other), on_labeled),
    ):
        method.target(teacher, student, step)
    plain, unseen, *seen = degrees
    assert plain
    torch.testing.assert_close(unseen, plain, rtol=1e-6, atol=0)
    for changed in seen:
        with pytest.raises(AssertionError):
            torch.testing.assert_close(changed, plain, rtol=1e-6, atol=0)


def test_strong_views_are_mixed_by_the_boxes():
    weak = views(False).image

    def strong(view):
        method = made("fixmatch", view=view)
        return method.strong(weak, part(planned(method), "strong"))

    image, boxes = strong(ViewConfig(jitter=0, gray=0, blur=0, cutmix=1.0))
    assert boxes[:2].any((1, 2)).all()
    assert torch.equal(image, torch.where(boxes[:, None], partner(weak), weak))
    _, none = strong(ViewConfig(cutmix=0.0))
    assert not none.any()
    coloured, same = strong(ALWAYS_MIXED)
    assert not torch.equal(coloured, image)
    assert torch.equal(same, boxes)


def test_the_plan_brings_lambda_and_the_teacher_s_decay():
    method = made("fixmatch", weight=2.0, ramp=(0.2, 0.6), teacher_decay=0.9)
    plan = method.plan(3, 0.3, (0,), (0,))
    assert float(plan["weight"]) == pytest.approx(0.5)
    assert float(plan["decay"]) == pytest.approx(0.75)
    assert "decay" not in made("fixmatch", teacher_decay=0.0).plan(3, 0.3, (0,), (0,))


def test_half_precision_is_handed_on_as_it_is():
    """The loss and psi make float32 of it where they need it."""
    method = made("fixmatch")
    method.autocast = lambda: torch.autocast("cpu", torch.bfloat16)
    assert method.predict(views(False).image).dtype == torch.bfloat16
    assert method.teach(views(False).image).dtype == torch.bfloat16
    found = method.losses(a_step(method))
    assert found.total.isfinite()
    assert {part.dtype for part in (found.total, *found.parts.values())} == {torch.float32}
