"""Steps that are captured and replayed, here by a recorder that runs them again; and what must not be in a step."""

from contextlib import ExitStack, contextmanager, nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logicdiag.data.open import open_dataset
from logicdiag.engine.capture import FIRST, CudaRecorder, wants_capture
from logicdiag.engine.distributed import World
from logicdiag.engine.optimizer import Optimizer
from logicdiag.engine.step import Stepper
from logicdiag.engine.trainer import Trainer
from logicdiag.errors import ConfigError, RunError
from logicdiag.logic.leaves import DECISIONS
from logicdiag.methods.build import METHODS
from tests.gpu import no_waiting

from .small import config, same

STILL = {
    "optimizer": {"power": 0.0},
    "psi": {"name": "threshold", "threshold": 0.1},
    "model": {"dropout": 0.3},
    "data": {"val": None},
}
"""Settings that do not change with the step, which on a CPU are not in the plan's tensors."""
DECAY = {"fixmatch": 0.0, "algorithm1": None}
"""Of the averaged teacher; 0.5 for all others."""


def trainer(**changes):
    c = config(**changes)
    return Trainer(c, open_dataset(c.data), World(), None, None)


def steps(made, count):
    """The lines of metrics of some steps."""
    lines = []
    with ExitStack() as stack:
        batches = made._batches(stack)
        for _ in range(count):
            made._step(next(batches))
            made.done += 1
            lines.append(made._line())
    return lines


class Again:
    """Stands for a CUDA graph: what was recorded runs again, on what it was recorded with."""

    def __init__(self):
        self.calls = []

    def aside(self, work):
        self.calls.append("aside")
        work()

    def record(self, work):
        self.calls.append("record")

        def replay():
            self.calls.append("replay")
            work()

        return replay


@pytest.mark.parametrize("method", list(METHODS))
def test_replayed_steps_are_the_steps(method):
    """The views and the plan reach the step that was captured; weights, record and optimiser are where they were."""
    changes = {**STILL, "method": {"name": method, "teacher_decay": DECAY.get(method, 0.5), "ramp": [0.0, 1.0]}}
    plain, captured = trainer(**changes), trainer(**changes)
    recorder = Again()
    captured.stepper.capture_with(recorder, pytest.fail)
    first = plain.method.pauses(6)[-1] if method == "st++" else 0  # each of its stages is captured anew
    assert steps(plain, first + 6) == steps(captured, first + 6)
    assert recorder.calls == ["aside"] * (first + FIRST) + ["record"] + ["replay"] * (6 - FIRST)
    same(plain.state(), captured.state())


def test_replayed_steps_hear_what_is_said_of_their_images(tmp_path):
    lines = [f"train_{number:04d},{0.01 * number},1" for number in range(4, 9)]
    (tmp_path / "witness.csv").write_text("\n".join(["image,tiger,leopard", *lines]), "utf-8")
    still = {**STILL, "method": {"teacher_decay": 0.0}}
    changes = {**still, "data": {"val": None, "witness": str(tmp_path / "witness.csv")}}
    plain, captured, alone = trainer(**changes), trainer(**changes), trainer(**still)
    captured.stepper.capture_with(Again(), pytest.fail)
    assert steps(plain, 6) == steps(captured, 6) != steps(alone, 6)
    same(plain.state(), captured.state())


def as_on_cuda(made):
    """Let the optimiser and the teacher follow the plan's tensors, as they do where steps are captured."""
    c = made.config
    made.stepper.optimizer = Optimizer([made.model], c.optimizer, c.train.steps, "fp32", "cuda")
    teacher = made.method.teacher
    made.method.follow = lambda index, plan: teacher.update(made.model, 0, plan["decay"])


@pytest.mark.parametrize("optimizer", [{"name": "sgd", "clip": 0.5, "warmup": 4}, {"name": "sgd", "lr": 0.01}])
def test_replayed_steps_follow_the_schedule(optimizer):
    """Rates, lambda and the teacher's decay of each step, and not those of the step that was captured."""
    changes = {**STILL, "optimizer": optimizer, "method": {"teacher_decay": 0.99, "ramp": [0.0, 1.0]}}
    changes["train"] = {"steps": 8}
    plain, captured = trainer(**changes), trainer(**changes)
    as_on_cuda(captured)
    captured.stepper.capture_with(Again(), pytest.fail)
    for one, other in zip(steps(plain, 8), steps(captured, 8), strict=True):
        assert other == pytest.approx(one, rel=1e-3)
    for one, other in zip(plain.method.teacher.parameters(), captured.method.teacher.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-2, atol=1e-4)


class Broken(Again):
    def record(self, work):
        self.calls.append("record")
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_a_step_that_cannot_be_captured_runs_as_it_is():
    plain, captured = trainer(**STILL), trainer(**STILL)
    recorder, said = Broken(), []
    captured.stepper.capture_with(recorder, said.append)
    assert steps(plain, 6) == steps(captured, 6)
    same(plain.state(), captured.state())
    assert said == [
        "the step could not be captured, and is slower: operation not permitted when stream is capturing",
    ]
    assert recorder.calls == ["aside"] * FIRST + ["record"]


def test_a_step_that_must_be_captured_and_cannot_ends_the_run():
    made = trainer(**STILL)
    made.stepper.config.capture = True
    made.stepper.capture_with(Broken(), pytest.fail)
    with pytest.raises(RunError, match="train.capture is true, but the step could not be captured: operation not"):
        steps(made, FIRST + 1)


def test_errors_of_a_step_are_not_taken_for_those_of_its_capture():
    made = trainer(**STILL)
    made.stepper.capture_with(Again(), pytest.fail)
    made.method.losses = lambda step: (_ for _ in ()).throw(RuntimeError("out of luck"))
    with pytest.raises(RuntimeError, match="out of luck"):
        steps(made, 1)


# ---- where steps are captured ----------------------------------------------------------------------------------------


class Psi:
    waits = False


class Waits:
    waits = True


@pytest.mark.parametrize(
    ("changes", "world", "psi", "reason"),
    [
        ({}, World(), Psi, "only steps on a CUDA device can be captured, and train.device is cpu"),
        ({}, World(0, 2, "cuda"), Psi, "this run has 2 processes"),
        ({"train": {"accumulate": 2}}, World(device="cuda"), Psi, "train.accumulate is 2"),
        ({"train": {"precision": "fp16"}}, World(device="cuda"), Psi, "train.precision is fp16"),
        ({}, World(device="cuda"), Waits, "psi.name is diagnosis"),
    ],
)
def test_where_it_is_impossible(changes, world, psi, reason):
    assert not wants_capture(config(**changes), psi(), world)
    changes["train"] = {**changes.get("train", {}), "capture": True}
    with pytest.raises(ConfigError, match=f"train.capture is true, but {reason}.*; leave it null"):
        wants_capture(config(**changes), psi(), world)


def test_where_it_is_possible():
    here = World(device="cuda")
    assert wants_capture(config(), Psi(), here)
    assert wants_capture(config(train={"capture": True, "precision": "bf16"}), Psi(), here)
    assert not wants_capture(config(train={"capture": False}), Psi(), here)


def test_on_a_cpu_it_is_refused_before_anything_is_written():
    with pytest.raises(ConfigError, match="train.capture is true, but only steps on a CUDA device"):
        trainer(train={"capture": True})


# ---- nothing is read back --------------------------------------------------------------------------------------------

READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "unique_dim")


class NothingRead(TorchDispatchMode):
    """Fails where a number goes back to Python, or a shape depends on one: on a GPU the host would wait for it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in READS, name
        if name in ("index", "index_put_", "index_put"):
            assert not any(i is not None and i.dtype == torch.bool for i in args[1]), f"{name} by a mask"
        return function(*args, **(kwargs or {}))


def test_the_watcher_sees_what_reads():
    for read in (lambda x: float(x[0]), lambda x: bool(x[0]), lambda x: x[x > 0], lambda x: x.nonzero()):
        with pytest.raises(AssertionError), NothingRead():
            read(torch.ones(2))


@contextmanager
def nothing_read_in_steps(monkeypatch):
    """From the plan on: losses, gradients, the optimiser, the teacher and the record."""
    inner = Stepper.move

    def move(self, *args):
        with NothingRead():
            inner(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "move", move)
        yield


@pytest.mark.parametrize("optimizer", [{"name": "sgd", "clip": 0.5}, {"name": "adamw"}], ids=["sgd", "adamw"])
@pytest.mark.parametrize("head", ["flat", "hierarchical"])
@pytest.mark.parametrize("method", list(METHODS))
def test_a_step_reads_nothing_back(monkeypatch, method, head, optimizer):
    decay = None if method == "algorithm1" else 0.5
    changes = {
        **STILL,
        "method": {"name": method, "teacher_decay": decay},
        "model": {"head": head, "dropout": 0.3},
        "optimizer": optimizer,
    }
    if optimizer["name"] == "adamw":  # on a CPU, torch counts its steps on the host
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)
    with nothing_read_in_steps(monkeypatch):
        steps(trainer(**changes), 2)


@pytest.mark.parametrize("by", ["random", "uncertain"])
def test_points_are_chosen_without_reading_back(monkeypatch, by):
    with nothing_read_in_steps(monkeypatch):
        steps(trainer(**STILL, loss={"points": 50, "points_by": by}), 2)


@pytest.mark.parametrize("decision", DECISIONS)
def test_leaves_are_decided_without_reading_back(monkeypatch, decision):
    with nothing_read_in_steps(monkeypatch):
        steps(trainer(**{**STILL, "model": {"decision": decision}, "psi": {"name": "threshold", "levels": 0.2}}), 2)


# ---- on a GPU --------------------------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def on_gpu(**changes):
    train = {"device": "cuda", "precision": "bf16", **changes.pop("train", {})}
    c = config(**{**STILL, **changes, "train": train})
    return Trainer(c, open_dataset(c.data), World(device="cuda:0"), None, None)


@gpu
@pytest.mark.parametrize("method", list(METHODS))
def test_captured_steps_on_a_gpu_are_the_steps(method):
    changes = {"method": {"name": method, "teacher_decay": DECAY.get(method, 0.5), "ramp": [0.0, 1.0]}}
    plain, captured = on_gpu(train={"capture": False}, **changes), on_gpu(train={"capture": True}, **changes)
    captured.stepper.capture_with(CudaRecorder(captured.here.device), pytest.fail)
    for one, other in zip(steps(plain, 8), steps(captured, 8), strict=True):
        assert one == pytest.approx(other, rel=0.02)
    assert captured.stepper.capture.captured is not None


@gpu
@pytest.mark.parametrize(
    "changes",
    [
        *({"loss": {"points": 50, "points_by": by}} for by in ("random", "uncertain")),
        *({"model": {"decision": decision}} for decision in DECISIONS),
        *({"model": {"decision": name}, "psi": {"name": "threshold", "levels": 0.2}} for name in DECISIONS),
    ],
    ids=str,
)
def test_captured_steps_on_a_gpu_choose_and_decide_alike(changes):
    plain, captured = on_gpu(train={"capture": False}, **changes), on_gpu(train={"capture": True}, **changes)
    captured.stepper.capture_with(CudaRecorder(captured.here.device), pytest.fail)
    for one, other in zip(steps(plain, 8), steps(captured, 8), strict=True):
        assert one == pytest.approx(other, rel=0.02)
    assert captured.stepper.capture.captured is not None


@gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("capture", [False, True])
def test_steps_on_a_gpu_never_wait(capture, optimizer):
    clipped = {"name": optimizer, "clip": 1.0}
    made = on_gpu(train={"capture": capture}, method={"teacher_decay": 0.5}, optimizer=clipped)
    if capture:
        made.stepper.capture_with(CudaRecorder(made.here.device), pytest.fail)
    with ExitStack() as stack:
        batches = made._batches(stack)
        for step in range(FIRST + 4):
            with no_waiting() if step > FIRST else nullcontext():
                made._step(next(batches))
            made.done += 1
    assert made._line()["loss"] > 0
