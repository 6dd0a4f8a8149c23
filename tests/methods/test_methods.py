import pytest
import torch

from logicdiag.data.config import ViewConfig
from logicdiag.data.views import partner
from logicdiag.errors import ConfigError, OptionError
from logicdiag.methods.config import LossConfig
from logicdiag.pseudo.target import Target

from .tester import ALWAYS_MIXED, SIZE, H, MethodTester, a_step, made, views
from .tester import test_every_method_has_a_tester as test_every_method_has_a_tester


class TestSupervised(MethodTester):
    name, parts = "supervised", ("labeled",)

    def unlabeled(self, parts):
        return 0.0

    def test_it_is_the_mean_over_labelled_pixels(self):
        method = made("supervised", loss=LossConfig(leaf=0.0))
        step = a_step(method)
        logits = method.predict(step.labeled.image)
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        paths = torch.zeros_like(logits)
        for i, leaf in enumerate(H.leaves):
            for node in H.path(leaf):
                paths[:, H.index(node)][step.labeled.leaf == i] = 1
        by_pixel = loss(logits, paths, reduction="none").sum(1)[step.labeled.leaf >= 0]
        method = made("supervised", loss=LossConfig(leaf=0.0))
        torch.testing.assert_close(method.losses(step).total, by_pixel.mean())


class TestFixMatch(MethodTester):
    name = "fixmatch"

    def test_against_the_equation(self):
        """Eq. 1 and 2 by hand, threshold psi, so that some pixels count and some do not."""
        method = made("fixmatch", "threshold", threshold=0.55)
        step = a_step(method)
        found = method.losses(step)
        method = made("fixmatch", "threshold", threshold=0.55)
        with torch.no_grad():
            weak = method.student.eval()(step.unlabeled.image).sigmoid()
        method.student.train()
        strong, boxes = method.strong(step.unlabeled, "strong")
        logits = method.student(torch.cat([step.labeled.image, strong]))
        sure, leaf = weak[:, list(H.leaf_indices)].max(1)
        weight = ((sure >= 0.55) & step.unlabeled.valid).float()
        assert 0.02 < float(weight.mean()) < 0.98
        weight, leaf = (torch.where(boxes, partner(t), t) for t in (weight, leaf))
        unlabeled = method.loss(logits[3:], Target(weight, leaf), 0, (0, 1, 2)) / step.unlabeled.valid.sum()
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
        with pytest.raises(ConfigError, match="method.teacher_decay is 0.0, but a mean teacher is an average"):
            made("mean_teacher", teacher_decay=0.0)


class TestUniMatch(MethodTester):
    name, parts = "unimatch", ("labeled", "unlabeled", "features")

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
        method, unlabeled = made("unimatch"), views(False)
        (first, boxes), (second, other) = (method.strong(unlabeled, stream) for stream in ("strong", "strong2"))
        assert not torch.equal(first, second)
        assert not torch.equal(boxes, other)

    def test_feature_dropout(self):
        method, unlabeled = made("unimatch", feature_dropout=0.25), views(False)
        features = torch.rand(3, 4000, 2, 2) + 1
        dropped = method._drop(features, unlabeled, 0)
        kept = dropped.ne(0)
        assert torch.equal(kept, kept[:, :, :1, :1].expand_as(kept))  # whole channels
        torch.testing.assert_close(dropped[kept], (features / 0.75)[kept])
        share = kept[:, :, 0, 0].float().mean(1)
        assert ((share - 0.75).abs() < 0.03).all()
        assert not torch.equal(kept[0], kept[1])
        assert torch.equal(dropped, method._drop(features, unlabeled, 0))
        assert not torch.equal(dropped, method._drop(features, unlabeled, 1))
        assert not torch.equal(dropped, method._drop(features, views(False, step=6), 0))

    def test_no_dropout_leaves_the_features(self):
        method, features = made("unimatch", feature_dropout=0.0), torch.rand(3, 8, 2, 2)
        assert torch.equal(method._drop(features, views(False), 0), features)

    def test_only_the_weak_view_s_features_are_dropped(self):
        method = made("unimatch", feature_dropout=0.9)
        step = a_step(method)
        plain = made("unimatch", feature_dropout=0.0)
        method.student.eval()
        plain.student.eval()
        strong = torch.rand(3, 3, SIZE, SIZE)
        found = method._forward(step.labeled, step.unlabeled, strong, strong)
        expected = plain._forward(step.labeled, step.unlabeled, strong, strong)
        for mine, theirs in zip(found[:3], expected[:3], strict=True):
            torch.testing.assert_close(mine, theirs)
        assert not torch.allclose(found[3], expected[3])
        torch.testing.assert_close(expected[3], plain.student(step.unlabeled.image))

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
        targets = []
        loss = method.loss
        method.loss = lambda logits, target, *rest: targets.append((logits, target)) or loss(logits, target, *rest)
        found = method.losses(step)
        ((both, nothing),) = seen
        assert len(both.probs) == 6
        assert len(nothing.probs) == 0
        assert len(set(both.slots)) == 6
        assert torch.equal(both.valid, torch.cat([step.labeled.leaf >= 0, step.unlabeled.valid]))
        logits, target = targets[1]
        torch.testing.assert_close(both.probs, logits.detach().sigmoid())
        pixels = both.valid.sum()
        torch.testing.assert_close(found.parts["unlabeled"], loss(logits, target, step.index, both.slots) / pixels)


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


@pytest.mark.parametrize("name", ["fixmatch", "mean_teacher", "unimatch", "algorithm1"])
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


def test_strong_views_are_mixed_by_the_boxes():
    unlabeled = views(False)
    plain = ViewConfig(jitter=0, gray=0, blur=0, cutmix=1.0)
    method = made("fixmatch", view=plain)
    image, boxes = method.strong(unlabeled, "strong")
    assert boxes[:2].any((1, 2)).all()
    assert torch.equal(image, torch.where(boxes[:, None], partner(unlabeled.image), unlabeled.image))
    method = made("fixmatch", view=ViewConfig(cutmix=0.0))
    _, boxes = method.strong(unlabeled, "strong")
    assert not boxes.any()
    coloured, _ = made("fixmatch", view=ALWAYS_MIXED).strong(unlabeled, "strong")
    assert not torch.equal(coloured, image)


def test_prediction_in_half_precision_is_handed_on_in_float32():
    method = made("fixmatch")
    method.autocast = lambda: torch.autocast("cpu", torch.bfloat16)
    assert method.predict(views(False).image).dtype == torch.float32
    assert method.teach(views(False).image).dtype == torch.float32
    assert method.losses(a_step(method)).total.isfinite()
