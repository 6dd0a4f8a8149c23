"""What holds for every method, with any psi and head; the tests of each method inherit it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

import logicdiag as ld
from logicdiag.data.config import ViewConfig
from logicdiag.data.loader import Views
from logicdiag.errors import ConfigError
from logicdiag.methods.build import METHODS, build_method
from logicdiag.methods.config import LossConfig, MethodConfig
from logicdiag.methods.loss import Loss
from logicdiag.methods.method import Method, Setting, Step
from logicdiag.models import ModelConfig, Segmenter, build_model
from logicdiag.plan import Layout, Planned, moved
from logicdiag.pseudo.build import PsiSetting, build_knowledge, build_psi
from logicdiag.pseudo.config import PsiConfig

H = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": {"car": ["taxi"], "bus": None}, "sky": None})
SIZE = 36
ALWAYS_MIXED = ViewConfig(cutmix=1.0)
PLAIN = {"weight": 5.0, "ramp": (0.0, 0.0), "teacher_decay": 0.0}
"""As in the papers, whatever the defaults are."""
AVERAGING = [name for name, kind in METHODS.items() if kind.needs_average]
ARRANGED = [("diagnosis", "hierarchical"), ("threshold", "hierarchical"), ("threshold", "flat")]


def views(labeled: bool, batch: int = 3, seed: int = 0, step: int = 5) -> Views:
    """Noise; the last columns are padding, and here and there a label is missing."""
    g = torch.Generator().manual_seed(seed)
    valid = torch.ones(batch, SIZE, SIZE, dtype=torch.bool)
    valid[..., -4:] = False
    leaf = torch.randint(len(H.leaves), (batch, SIZE, SIZE), generator=g)
    leaf[(torch.rand(leaf.shape, generator=g) < 0.1) | ~valid] = -1
    return Views(
        torch.rand(batch, 3, SIZE, SIZE, generator=g), leaf if labeled else None, valid, step, (*range(batch),)
    )


def a_step(method: Method, progress: float = 0.5, index: int = 5) -> Step:
    labeled = views(True)
    unlabeled = views(False, seed=1) if method.needs_unlabeled else None
    assert labeled.leaf is not None
    counted = views(False, seed=1).valid.sum()
    plan = planned(method, progress, index)
    return Step(labeled, unlabeled, (labeled.leaf >= 0).sum().float(), counted.float(), plan)


def planned(method: Method, progress: float = 0.5, index: int = 5) -> Planned:
    return moved(method.plan(index, progress, (0, 1, 2), (0, 1, 2)), torch.device("cpu"))


def made(
    name: str,
    psi: str = "diagnosis",
    head: str = "hierarchical",
    loss: LossConfig | None = None,
    view: ViewConfig = ALWAYS_MIXED,
    threshold: float = 0.0,
    levels: float = 0.0,
    **options: object,
) -> Method:
    torch.manual_seed(0)
    config = PsiConfig(name=psi, threshold=threshold, weight="one", levels=levels)
    networks = METHODS[name].networks if name in METHODS else 1
    return build_method(
        Setting(
            [network(head) for _ in range(networks)],
            build_psi(PsiSetting(config, build_knowledge(config, H), head)),
            Loss(loss or LossConfig(), H, head),
            MethodConfig(**{"name": name, **PLAIN, **({"teacher_decay": 0.9} if name in AVERAGING else {}), **options}),  # type: ignore[arg-type]
            view,
            SIZE,
        )
    )


def network(head: str = "hierarchical") -> Segmenter:
    model = build_model(ModelConfig(encoder="small", head=head, decoder_channels=16, head_bias=0.0), H).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.weight.data.mul_(2)  # predictions that differ from pixel to pixel
    return model


class MethodTester:
    name: str
    parts = ("labeled", "unlabeled")
    spared: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Names of parameters, by their beginnings, that a part does not reach."""
    halfway = 1.5
    """Lambda, halfway up a ramp to 3."""

    @pytest.mark.parametrize(("psi", "head"), ARRANGED)
    def test_every_parameter_learns(self, psi, head):
        method = made(self.name, psi, head)
        found = method.losses(a_step(method))
        assert tuple(found.parts) == self.parts
        assert all(bool(value.isfinite() & (value > 0)) for value in (found.total, *found.parts.values()))
        found.total.backward()
        for student in method.students:
            for name, parameter in student.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.isfinite().all(), name
                assert parameter.grad.any(), name

    @pytest.mark.parametrize(("psi", "head"), ARRANGED)
    def test_every_part_teaches_every_student(self, psi, head):
        """By itself: what one part fails to teach, another could hide."""
        method = made(self.name, psi, head)
        found = method.losses(a_step(method))
        for part, value in found.parts.items():
            for student in method.students:
                names, parameters = zip(*student.named_parameters(), strict=True)
                gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
                taught = {name for name, g in zip(names, gradients, strict=True) if g is not None and g.any()}
                assert taught == {name for name in names if not name.startswith(self.spared.get(part, ()))}, part

    @pytest.mark.parametrize(("psi", "head"), ARRANGED)
    def test_every_view_teaches(self, psi, head):
        """Each by its own outputs, behind the last batch norm: through it a view would be moved by others alone."""
        method = made(self.name, psi, head)
        seen = []

        def hook(_, args, out):
            if out.requires_grad:
                out.retain_grad()
                seen.append(out)

        for student in method.students:
            student.classifier.register_forward_hook(hook)
        step = a_step(method)
        method.losses(step).total.backward()
        assert sum(map(len, seen)) >= len(step.labeled) * method.learned
        for logits in seen:
            assert logits.grad is not None
            assert logits.grad.flatten(1).any(1).all()

    def test_what_it_says_of_its_cost(self):
        """Views that go through a network, with and without a way back; and how many networks there are."""
        method = made(self.name, **self.teaching)
        seen = {True: 0, False: 0}
        networks = [*method.students, *(teacher.model for teacher in method.teachers), *method.frozen]
        for model in networks:
            model.encoder.register_forward_hook(
                lambda _, args, out: seen.update({out[0].requires_grad: seen[out[0].requires_grad] + len(args[0])})
            )
        step = a_step(method)
        method.losses(step)
        assert seen == {True: len(step.labeled) * method.learned, False: len(step.labeled) * method.taught}
        assert len(method.students) == method.networks
        assert len(method.teachers) == method.averaged
        assert method.paper.year > 2010

    @property
    def teaching(self):
        """Options with which there are averaged teachers."""
        return {"teacher_decay": 0.9} if METHODS[self.name].averaged else {}

    def test_the_same_step_twice_is_the_same(self):
        first, second = (made(self.name) for _ in range(2))
        assert torch.equal(first.losses(a_step(first)).total, second.losses(a_step(second)).total)

    def test_another_step_is_another(self):
        method = made(self.name)
        if not method.needs_unlabeled:
            pytest.skip("nothing is drawn")
        first = method.losses(a_step(method)).parts["unlabeled"]
        assert not torch.equal(first, method.losses(a_step(method, index=6)).parts["unlabeled"])

    def test_what_a_witness_says_reaches_psi(self):
        """With the unlabelled views that it is about; of labelled ones that psi is asked for, it says nothing."""
        method = made(self.name)
        if not method.needs_unlabeled:
            pytest.skip("psi is not asked")
        inner, asked = method.psi, []

        class Listening:
            plan, waits = inner.plan, inner.waits

            def __call__(self, unlabeled, labeled):
                asked.append(unlabeled)
                assert labeled.heard is None
                return inner(unlabeled, labeled)

        method.psi = Listening()
        step = a_step(method)
        heard = torch.arange(1.0, 3 * len(H) + 1).view(3, len(H))
        method.losses(replace(step, unlabeled=replace(step.unlabeled, heard=heard)))
        assert asked
        for prediction in asked:
            labeled = len(prediction.logits) - len(heard)
            assert labeled in (0, len(step.labeled))
            assert torch.equal(prediction.heard, torch.cat([torch.zeros(labeled, len(H)), heard]))
        asked.clear()
        method.losses(step)
        assert all(prediction.heard is None for prediction in asked)

    def test_teaching_leaves_the_student_alone(self):
        method = made(self.name)
        image = views(False).image
        for which, student in enumerate(method.students):
            before = copy.deepcopy(student.state_dict())
            logits = method.teach(image, which)
            assert not logits.requires_grad
            assert all(module.training for module in student.modules())
            for key, value in student.state_dict().items():
                assert torch.equal(before[key], value), key
            teacher = method.teachers[which].model if method.teachers else student
            torch.testing.assert_close(logits, copy.deepcopy(teacher).eval()(image))
            torch.testing.assert_close(method.infer(image, which), copy.deepcopy(student).eval()(image))
        assert method.evaluated is (method.teacher.model if method.teacher else method.student)

    def test_without_a_teacher_the_student_is_used(self):
        if self.name in AVERAGING:
            with pytest.raises(ConfigError, match="method.teacher_decay is 0.0, but .* expected above 0, such as 0.99"):
                made(self.name, teacher_decay=0.0)
            return
        method = made(self.name, teacher_decay=0.0)
        assert method.teacher is None
        assert method.evaluated is method.student
        assert "teachers" not in method.state_dict()
        method.follow(0, {})

    @pytest.mark.parametrize("decay", [None, 0.9])
    def test_the_teacher_follows_and_is_never_trained(self, decay):
        if self.name == "algorithm1":
            pytest.skip("it has none")
        method = made(self.name, teacher_decay=decay)
        decay = method.default_decay if decay is None else decay
        assert method.evaluated is method.teacher.model
        assert method.evaluated is not method.student
        before = [[p.clone() for p in teacher.parameters()] for teacher in method.teachers]
        method.losses(a_step(method)).total.backward()
        for old, teacher in zip(before, method.teachers, strict=True):
            assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
            assert not any(module.training for module in teacher.model.modules())
            assert all(torch.equal(a, b) for a, b in zip(old, teacher.parameters(), strict=True))
        with torch.no_grad():
            for number, student in enumerate(method.students, 1):
                for parameter in student.parameters():
                    parameter.add_(number)
        method.follow(1000, planned(method, index=1000))
        for values, teacher, student in zip(before, method.teachers, method.students, strict=False):
            for old, mine, theirs in zip(values, teacher.parameters(), student.parameters(), strict=True):
                torch.testing.assert_close(mine, decay * old + (1 - decay) * theirs)
            for mine, theirs in zip(teacher.model.buffers(), student.buffers(), strict=True):
                assert torch.equal(mine, theirs)

    def test_psi_is_given_no_gradients(self):
        """Whatever it makes of them, nothing can go back through a label."""
        method = made(self.name)
        step, inner, seen = a_step(method), method.psi, []
        method.psi = lambda *predictions: seen.extend(predictions) or inner(*predictions)
        method.losses(step)
        assert bool(seen) == method.needs_unlabeled
        assert not any(prediction.logits.requires_grad for prediction in seen)

    def test_its_state_is_all_but_the_first_student(self):
        method, other = (made(self.name, **self.teaching) for _ in range(2))
        with torch.no_grad():
            for network in (*method.students, *method.teachers):
                for number, parameter in enumerate(network.parameters()):
                    parameter.add_(number)
        other.student.load_state_dict(method.student.state_dict())
        other.load_state_dict(copy.deepcopy(method.state_dict()))
        for mine, theirs in zip((*method.students, *method.teachers), (*other.students, *other.teachers), strict=True):
            for key, value in mine.state_dict().items():
                assert torch.equal(value, theirs.state_dict()[key]), key

    def test_total_is_made_of_the_parts(self):
        method = made(self.name, weight=3.0, ramp=(0.0, 1.0))
        found = method.losses(a_step(method, progress=0.5))
        expected = found.parts["labeled"] + self.halfway * self.unlabeled(found.parts)
        torch.testing.assert_close(found.total, expected)

    def unlabeled(self, parts):
        return parts["unlabeled"]

    def test_the_table_has_all_numbers(self):
        method = made(self.name)
        with torch.no_grad():
            found = method.losses(a_step(method))
        table = found.table()
        assert table.dtype == torch.float64
        assert found.names[: 1 + len(self.parts)] == ("loss", *(f"loss/{part}" for part in self.parts))
        expected = [(found.total, 0), *((part, 0) for part in found.parts.values()), *found.statistics.values()]
        assert table.tolist() == [[torch.as_tensor(x).item() for x in row] for row in expected]

    @pytest.mark.parametrize("psi", ["diagnosis", "threshold"])
    def test_the_plan_is_all_that_changes_from_step_to_step(self, psi):
        """Arrays of one shape, whatever the step; a captured step is fed nothing else."""
        method = made(self.name, psi, loss=LossConfig(points=50))
        first, second = (method.plan(index, index / 10, (4, 5), (6, 7, 8)) for index in (0, 9))
        assert Layout(first) == Layout(second)
        again = method.plan(9, 0.9, (4, 5), (6, 7, 8))
        assert all((second[name] == again[name]).all() for name in second)
        assert any((second[name] != first[name]).any() for name in second)

    def test_without_weight_it_is_supervised(self):
        method = made(self.name, weight=0.0)
        found = method.losses(a_step(method))
        torch.testing.assert_close(found.total, found.parts["labeled"])

    def test_ignored_and_padded_pixels_do_not_count(self):
        """What a labelled pixel shows still reaches its neighbours; so only the loss is looked at."""
        method = made(self.name)
        step = a_step(method)
        logits = torch.randn(3, len(H), SIZE, SIZE, requires_grad=True)
        method.labeled_loss(logits, step).backward()
        assert torch.equal(logits.grad.ne(0).any(1), step.labeled.leaf >= 0)
