"""The machine code and the tensor operations that it stands for."""

import random

import pytest
import torch

from logicdiag.errors import LogicDiagError
from logicdiag.kernels import automaton, native
from logicdiag.kernels.schedule import Automaton
from logicdiag.logic.compile import compile_knowledge
from tests.cases import random_knowledge


def cases(seed, count):
    """Random automata with random observations; odd numbers of pixels, so that tiles and threads end raggedly."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    while count:
        try:
            kb = random_knowledge(rng, families=rng.choice(["C", "D", "E", "CD", "CE", "DE"]))
            parts = [part for part in compile_knowledge(kb).parts if isinstance(part, Automaton)]
        except LogicDiagError:
            continue
        for part in parts:
            pixels = rng.choice([1, 63, 129, 700])
            n = max(part.rows) + 1 + rng.choice([0, 2])
            dtype = rng.choice([torch.float32, torch.float64])
            scale = rng.choice([0.0, 1.0, 5.0])
            flip = (scale * torch.randn(n, pixels, dtype=dtype)).round(decimals=2)
            yield part, torch.rand(n, pixels) > 0.5, flip
            count -= 1


@pytest.mark.parametrize("choice", ["sample", "best"])
@pytest.mark.parametrize("expected", [False, True])
def test_both_take_the_same_diagnosis_from_the_same_numbers(choice, expected, monkeypatch):
    flips = 0
    for part, observed, flip in cases(3, 60):
        taken = []
        for use in (True, False):
            monkeypatch.setattr(native, "available", use)
            generator = torch.Generator().manual_seed(7)
            taken.append(automaton.diagnose(part, observed, flip, choice, generator, expected))
        fast, slow = taken
        assert torch.equal(fast.revised, slow.revised)
        torch.testing.assert_close(fast.log_prob, slow.log_prob, rtol=1e-5, atol=1e-5)
        if expected:
            torch.testing.assert_close(fast.expected, slow.expected, rtol=1e-5, atol=1e-6)
        flips += int((fast.revised != observed).sum())
    assert flips > 1000


def test_pixels_out_of_range_go_to_wider_numbers():
    """Odds of e^80 each leave float32 after a few nodes; the result is that of logarithms throughout."""
    for part, observed, _ in cases(4, 20):
        flip = torch.full(observed.shape, -80.0)
        flip[:, ::2] = -0.5
        fast = automaton.diagnose(part, observed, flip, "best", None, True)
        work = automaton._Work(
            part.schedule, observed[list(part.rows)], flip[list(part.rows)].double(), "best", None, True
        )
        assert not work.attempt(None, torch.float64, automaton.LOGARITHMS).numel()
        assert torch.equal(fast.revised[list(part.rows)], work.revised)
        torch.testing.assert_close(fast.log_prob.double(), work.log_prob, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(fast.expected[list(part.rows)].double(), work.marginal, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_the_pixels(threads):
    part, observed, flip = next(c for c in cases(5, 30) if c[1].shape[1] == 700)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        many = automaton.diagnose(part, observed, flip, "sample", torch.Generator().manual_seed(1), False)
        torch.set_num_threads(1)
        one = automaton.diagnose(part, observed, flip, "sample", torch.Generator().manual_seed(1), False)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(many.revised, one.revised)
    assert torch.equal(many.log_prob, one.log_prob)
