"""What the trainer tells a method at each step: how far the run is, whom the teacher follows, what chance is drawn."""

from contextlib import ExitStack

import pytest
import torch

from logicdiag.data.open import open_dataset
from logicdiag.engine.distributed import World
from logicdiag.engine.run import read_metrics
from logicdiag.engine.train import train
from logicdiag.engine.trainer import Trainer

from .small import config

DECAY, WEIGHT, STEPS = 0.6, 5.0, 6


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """A run's metrics, and the weights of student and teacher after each step."""
    weights = []

    def copied(network):
        return [parameter.detach().clone() for parameter in network.parameters()]

    run = train(
        config(
            data={"val": None},
            method={"teacher_decay": DECAY, "weight": WEIGHT, "ramp": [0.5, 1.0]},
            train={"steps": STEPS, "log_every": 1},
        ),
        tmp_path_factory.mktemp("observed") / "run",
        observe=lambda trainer: weights.append((copied(trainer.model), copied(trainer.method.teacher))),
    )
    return read_metrics(run.path), weights


def test_the_teacher_is_the_moving_average_of_the_student(observed):
    """The plain mean of the first students, until it would keep more than the decay."""
    _, weights = observed
    kept = [0, 1 / 2, DECAY, DECAY, DECAY, DECAY]
    average = weights[0][0]
    for decay, (student, teacher) in zip(kept, weights, strict=True):
        average = [decay * mine + (1 - decay) * theirs for mine, theirs in zip(average, student, strict=True)]
        torch.testing.assert_close(teacher, average, rtol=1e-5, atol=1e-7)
    with pytest.raises(AssertionError):  # the student does move
        torch.testing.assert_close(*weights[-1], rtol=1e-5, atol=1e-7)


def test_lambda_follows_the_ramp_over_the_run(observed):
    """From 0 at half of the run to its value at the end, which no step quite reaches."""
    lines, _ = observed
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line, share in zip(lines, [0, 0, 0, 0, 1 / 3, 2 / 3], strict=True):
        assert line["loss/unlabeled"] > 0.01
        expected = line["loss/labeled"] + share * WEIGHT * line["loss/unlabeled"]
        assert line["loss"] == pytest.approx(expected, rel=1e-5), line["step"]


def dropped(start, count):
    """Which channels are dropped in each of some steps."""
    c = config(model={"dropout": 0.5}, method={"name": "supervised", "teacher_decay": 0.0})
    made = Trainer(c, open_dataset(c.data), World(), None, None)
    made.done, seen = start, []
    for module in made.model.modules():
        if isinstance(module, torch.nn.Dropout2d):
            module.register_forward_pre_hook(lambda _, args: torch.ones_like(args[0]))
            module.register_forward_hook(lambda _, args, out: seen.append(out[:, :, 0, 0] == 0))
    steps = []
    with ExitStack() as stack:
        batches = made._batches(stack)
        for _ in range(count):
            made._step(next(batches))
            made.done += 1
            steps.append(torch.cat([mask.flatten() for mask in seen]))
            seen.clear()
    return steps


def test_dropout_is_drawn_anew_at_each_step_and_by_the_step_alone():
    steps = dropped(0, 3)
    assert all(mask.any() and not mask.all() for mask in steps)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(steps[i], steps[j])
    assert all(torch.equal(mask, again) for mask, again in zip(steps[1:], dropped(1, 2), strict=True))
