"""The averaged teacher."""

import copy

import pytest
import torch
from torch import nn

from logicdiag.errors import OptionError
from logicdiag.models import AveragedTeacher
from tests.models.tester import built, images


def changed(student: nn.Module, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter))
        student.train()(images(2, 32, 32, seed))
    return student


def test_follows_by_the_ramp_then_by_the_decay():
    student = built(encoder="small")
    teacher = AveragedTeacher(student, decay=0.6)
    expected = [p.detach().clone() for p in student.parameters()]
    for step in range(5):
        changed(student, step)
        teacher.update(student, step)
        decay = min(1 - 1 / (step + 1), 0.6)
        expected = [decay * e + (1 - decay) * p.detach() for e, p in zip(expected, student.parameters(), strict=True)]
        for mine, wanted in zip(teacher.model.parameters(), expected, strict=True):
            torch.testing.assert_close(mine, wanted)
    for mine, theirs in zip(teacher.model.buffers(), student.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_first_step_and_decay_zero_are_copies_bit_for_bit():
    student = built(encoder="small")
    teachers = {0: AveragedTeacher(student, 0.99), 7: AveragedTeacher(student, 0.0)}
    changed(student, 1)
    for step, teacher in teachers.items():
        teacher.update(student, step)
        for key, value in teacher.model.state_dict().items():
            assert torch.equal(value, student.state_dict()[key]), key


def test_a_decay_on_the_device_is_the_same_average():
    """As a captured step gives it: `step` then counts for nothing."""
    student = built(encoder="small")
    plain, captured = AveragedTeacher(student, decay=0.6), AveragedTeacher(student, decay=0.6)
    for step in range(4):
        changed(student, step)
        plain.update(student, step)
        captured.update(student, 0, torch.tensor(plain.decay_at(step)))
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(captured.state_dict()[key], value, msg=key)
            if step == 0:
                assert torch.equal(captured.state_dict()[key], value), key


def test_is_apart_from_the_student_and_never_trained():
    student = built(encoder="small")
    teacher = AveragedTeacher(student)
    before = copy.deepcopy(teacher.state_dict())
    changed(student, 3)
    assert all(torch.equal(before[key], value) for key, value in teacher.state_dict().items())
    nn.ModuleDict({"student": student, "teacher": teacher}).train()
    teacher.requires_grad_(True)
    assert student.training
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not teacher(images(1, 32, 32).requires_grad_()).requires_grad


def test_state_round_trip_is_exact():
    student = built(encoder="small")
    teacher = AveragedTeacher(student, 0.9)
    for step in range(3):
        teacher.update(changed(student, step), step)
    other = AveragedTeacher(built(encoder="small"), 0.9)
    other.load_state_dict(copy.deepcopy(teacher.state_dict()))
    teacher.update(changed(student, 5), 3)
    other.update(student, 3)
    assert all(torch.equal(other.state_dict()[key], value) for key, value in teacher.state_dict().items())


@pytest.mark.parametrize("decay", [-0.1, 1.5])
def test_refused(decay):
    with pytest.raises(OptionError, match="decay is"):
        AveragedTeacher(nn.Linear(1, 1), decay)
