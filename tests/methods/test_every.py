"""Every method with every psi and head, as the trainer runs it: also those that are added later."""

import copy
import importlib
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from logicdiag.engine.distributed import World
from logicdiag.methods.build import METHODS
from logicdiag.methods.stpp import ALL
from tests.engine.small import same

from .every import ANCHORED, CELLS, ran, steps, trainer
from .tester import MethodTester


def test_every_method_has_a_tester():
    for path in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"{__package__}.{path.stem}")
    testers = {kind.name for kind in MethodTester.__subclasses__()}
    assert testers == set(METHODS)


@pytest.mark.parametrize(("method", "psi", "head"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_steps_and_resuming(method, psi, head):
    """Losses are numbers, every parameter learns, teachers follow without a gradient; and resumed it is the same."""
    made = trainer(method, psi, head, more=ANCHORED)
    before = [[p.detach().clone() for p in student.parameters()] for student in made.method.students]
    learning, inner = set(), made.optimizer.step

    def step(*args):
        learning.update(p for p in made.optimizer.parameters if p.grad is not None and p.grad.any())
        inner(*args)

    made.optimizer.step = step
    first = 4 if method == "st++" else 2  # its last stage begins with the fifth
    lines = steps(made, first)
    state = copy.deepcopy(made.state())
    lines += steps(made, 1)
    assert all(math.isfinite(value) for line in lines for value in line.values())
    for old, student in zip(before, made.method.students, strict=True):
        for was, (name, parameter) in zip(old, student.named_parameters(), strict=True):
            assert not torch.equal(was, parameter), name
    trained = {p for module in (*made.method.students, *made.method.heads) for p in module.parameters()}
    assert learning == trained  # decay of weights, too, would move one
    for teacher in made.method.teachers:
        assert not any(p.requires_grad or p.grad is not None for p in teacher.parameters())
    resumed = trainer(method, psi, head, more=ANCHORED)
    resumed.load(state)
    assert steps(resumed, 1) == lines[first:]
    assert getattr(made.method, "stage", ALL) == ALL
    same(resumed.state(), made.state())


# ---- two processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """What two processes found, as `torchrun --nproc-per-node=2` starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = tmp_path_factory.mktemp("two") / "found.pt"
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.methods.every", str(out)],
            env={**shared, "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    return torch.load(out)


@pytest.mark.parametrize("cell", CELLS, ids=["-".join(cell) for cell in CELLS])
def test_two_processes_are_one(of_two, cell):
    runs = ran(cell, World())
    for two, one in zip(of_two["-".join(cell)], runs, strict=True):
        for mine, theirs in zip(two["lines"], one["lines"], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3)
        close(two["model"], one["model"])
        close(two["method"], one["method"])
    assert cell[0] != "u2pl" or runs[-1]["lines"][0]["loss/contrast"] > 0


def close(one, other, where=""):
    """Nested states, up to the rounding of sums that are added up in another order."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            close(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            close(mine, theirs, f"{where}.{index}")
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3, msg=where)
    else:
        assert one == other, where


@pytest.mark.parametrize(("decision", "least"), [("path", 0.3), ("tree", 0.12)])
@pytest.mark.parametrize("method", METHODS)
def test_levels_and_decisions_with_every_method(method, decision, least):
    """Of the pixels that count, some are learned down to a superclass alone."""
    more = {"model": {"decision": decision}, "psi": {"levels": least}, "optimizer": {"lr": 1e-4}}
    made = trainer(method, "diagnosis", "hierarchical", more=more)
    seen = []
    psi = made.method.psi
    made.method.psi = lambda *args: seen.append(found := psi(*args)) or found
    made.method.psi.plan = psi.plan
    made.method.psi.waits = psi.waits
    assert all(math.isfinite(line["loss"]) for line in steps(made, 3))  # the third is of st++'s second stage
    assert bool(seen) == made.method.needs_unlabeled
    if seen:
        leaves = made.model.leaf_channels
        targets = [target for target, _ in seen]
        assert all(target.sure is not None for target in targets)
        counted = torch.cat([target.sure[target.weight > 0] for target in targets])
        assert not torch.isin(counted, leaves).all()
