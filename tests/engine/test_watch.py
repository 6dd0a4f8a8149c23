"""Trouble is told once, with what to try."""

import math

import pytest
import torch

from logicdiag.engine.watch import NO_NUMBER, PATIENCE, Watch
from logicdiag.errors import RunError


@pytest.fixture
def said():
    return []


@pytest.fixture
def watch(said):
    return Watch(said.append)


def test_a_good_run_is_quiet(watch, said):
    for step in range(50):
        watch.metrics(step, {"loss": 1.0, "counted": 0.4}, 5.0)
        watch.predictions(step, torch.tensor([[90, 1], [3, 6]]), ("cat", "sky"))
    assert said == []


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_no_number_is_told_once_and_then_ends_the_run(watch, said, loss):
    for step in range(1, NO_NUMBER):
        watch.metrics(step, {"loss": loss}, 5.0)
    assert len(said) == 1
    assert said[0].startswith(f"step 1: the loss is {loss}; try a lower optimizer.lr, optimizer.clip=1")
    with pytest.raises(RunError, match=f"step {NO_NUMBER}: the network has diverged.*try a lower optimizer.lr"):
        watch.metrics(NO_NUMBER, {"loss": loss}, 5.0)


def test_a_single_line_without_a_number_is_forgiven(watch, said):
    for step in range(20):
        watch.metrics(step, {"loss": math.nan if step % NO_NUMBER else 1.0}, 5.0)
    assert len(said) == 1


def test_no_pixel_counts(watch, said):
    for step in range(1, PATIENCE):
        watch.metrics(step, {"loss": 1.0, "counted": 0.0}, 5.0)
    assert said == []
    for step in range(PATIENCE, 3 * PATIENCE):
        watch.metrics(step, {"loss": 1.0, "counted": 0.0}, 5.0)
    assert len(said) == 1
    assert said[0].startswith(f"step {PATIENCE}: for {PATIENCE} lines of metrics no unlabelled pixel has counted; try")
    assert "psi.threshold" in said[0]
    assert "method.ramp" in said[0]


def test_nothing_has_to_count_before_the_ramp_or_when_some_did(watch, said):
    for step in range(3 * PATIENCE):
        watch.metrics(step, {"loss": 1.0, "counted": 0.0}, 0.0)
    for step in range(3 * PATIENCE):
        watch.metrics(step, {"loss": 1.0, "counted": 0.2 if step % PATIENCE == 0 else 0.0}, 5.0)
    for step in range(3 * PATIENCE):
        watch.metrics(step, {"loss": 1.0}, 5.0)  # supervised
    assert said == []


def test_one_class(watch, said):
    confusion = torch.tensor([[7000, 1], [2999, 0]])
    for step in (10, 20):
        watch.predictions(step, confusion, ("cat", "sky"))
    assert len(said) == 1
    assert said[0].startswith("step 10: 'cat' is predicted at 100.0 % of all pixels; try")
    assert "method.weight" in said[0]


def test_one_class_is_right_where_there_is_one(watch, said):
    watch.predictions(1, torch.tensor([[7000, 0], [0, 0]]), ("cat", "sky"))
    watch.predictions(1, torch.zeros(2, 2, dtype=torch.long), ("cat", "sky"))
    assert said == []
