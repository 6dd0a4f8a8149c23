"""Interrupted anywhere and resumed, a run comes out as if it had never stopped: bit for bit."""

import json
import os
import pickle
import random
import shutil
import signal
import time
import warnings

import pytest
import torch

from logicdiag.data.open import open_dataset
from logicdiag.engine import run as run_files
from logicdiag.engine import trainer as training
from logicdiag.engine.run import load_checkpoint, read_metrics
from logicdiag.engine.stop import Interrupted, stop_signals
from logicdiag.engine.train import resume, train
from logicdiag.errors import RunError

from .small import config, config_file, folder_dataset, on_disk, same, started, stop_after

ARRANGED = {
    "supervised": {"model": {"head": "flat", "dropout": 0.3}},
    "fixmatch": {"model": {"dropout": 0.3}, "loss": {"points": 300, "points_by": "uncertain"}},
    "mean_teacher": {"psi": {"name": "threshold", "threshold": 0.51}, "optimizer": {"name": "adamw"}},
    "unimatch": {"method": {"teacher_decay": 0.9, "ramp": [0.2, 0.8]}, "optimizer": {"clip": 0.5}},
    "cps": {"model": {"dropout": 0.3}, "optimizer": {"name": "adamw"}},
    "mkd": {"psi": {"name": "threshold", "threshold": 0.51}, "model": {"head": "flat"}},
    "algorithm1": {"psi": {"weight": "likelihood"}, "train": {"precision": "bf16"}},
    "ael": {"method": {"teacher_decay": 0.9}, "data": {"views": {"cutmix": 1.0}}},
    "st++": {"method": {"teacher_decay": 0.9}, "optimizer": {"name": "adamw"}},
    "u2pl": {"method": {"teacher_decay": 0.9, "u2pl": {"queue": 300, "confidence": 0.0}}},
}


def arranged(method):
    changes = {part: dict(keys) for part, keys in ARRANGED[method].items()}
    decay = 0.9 if method in ("mean_teacher", "mkd") else 0.0
    changes["method"] = {"name": method, "teacher_decay": decay, **changes.get("method", {})}
    changes["train"] = {"save_every": 4, **changes.get("train", {})}
    return changes


def equal_runs(one, other):
    same(load_checkpoint(one, "cpu"), load_checkpoint(other, "cpu"))
    for name in ("last.safetensors", "best.safetensors", "metrics.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("method", list(ARRANGED))
def test_resumed_exactly(tmp_path, monkeypatch, method):
    """Stopped twice, at steps of chance."""
    changes = arranged(method)
    train(config(**changes), tmp_path / "whole")
    first, second = sorted(random.Random(method).sample(range(1, 6), 2))
    with monkeypatch.context() as patch:
        stop_after(patch, first)
        with pytest.raises(Interrupted, match=f"stopped at step {first} of 6; go on with: logicdiag train --resume"):
            train(config(**changes), tmp_path / "cut")
    assert load_checkpoint(tmp_path / "cut", "cpu")["done"] == first
    with monkeypatch.context() as patch:
        stop_after(patch, second - first)
        with pytest.raises(Interrupted, match=f"stopped at step {second}"):
            resume(tmp_path / "cut")
    resume(tmp_path / "cut")
    equal_runs(tmp_path / "whole", tmp_path / "cut")
    state = load_checkpoint(tmp_path / "cut", "cpu")
    assert ("teachers" in state["method"]) == (method in ("mean_teacher", "unimatch", "mkd", "u2pl", "ael", "st++"))
    assert ("students" in state["method"]) == (method in ("cps", "mkd"))


def told(tmp_path, name="witness.csv", weight=0.01):
    """A configuration with a witness, who is sure of an image or two."""
    lines = "".join(f"train_{number:04d},{weight},1,1,{weight}\n" for number in (4, 6, 7, 8))
    (tmp_path / name).write_text(f"image,tiger,leopard,animal,plant\n{lines}", "utf-8")
    return config(data={"witness": str(tmp_path / name)}, method={"teacher_decay": 0.9}, psi={"levels": 0.3})


def test_resumed_exactly_with_a_witness(tmp_path, monkeypatch):
    """Who makes a difference; may have moved; and must say the same."""
    train(told(tmp_path), tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            train(told(tmp_path), tmp_path / "cut")
    told(tmp_path, "other.csv", 0.02)
    with pytest.raises(RunError, match="data.witness says other things than when the run was begun"):
        resume(tmp_path / "cut", [f"data.witness={tmp_path / 'other.csv'}"])
    (tmp_path / "witness.csv").rename(tmp_path / "moved.csv")
    resume(tmp_path / "cut", [f"data.witness={tmp_path / 'moved.csv'}"])
    same(load_checkpoint(tmp_path / "whole", "cpu"), load_checkpoint(tmp_path / "cut", "cpu"))
    assert json.loads((tmp_path / "cut/record.json").read_text())["lists"]["witness"]["count"] == 4
    train(config(method={"teacher_decay": 0.9}, psi={"levels": 0.3}), tmp_path / "alone")
    one, other = ((tmp_path / name / "last.safetensors").read_bytes() for name in ("whole", "alone"))
    assert one != other


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 6])
def test_resumed_exactly_at_and_between_stages(tmp_path, monkeypatch, cut):
    """Of eight steps, the second stage begins after two, the third after five; a snapshot is taken after one."""
    changes = {"method": {"name": "st++", "teacher_decay": 0.5}, "train": {"steps": 8, "labeled_batch": 3}}
    changes["optimizer"] = {"lr": 0.05}
    offered = []
    run = train(config(**changes), tmp_path / "whole", observe=lambda t: offered.append(t.method.offered))
    assert [None if numbers is None else len(numbers) for numbers in offered] == [0, 0, 2, 2, 2, None, None, None]
    with monkeypatch.context() as patch:
        stop_after(patch, cut)
        with pytest.raises(Interrupted, match=f"stopped at step {cut} of 8"):
            train(config(**changes), tmp_path / "cut")
    resume(tmp_path / "cut")
    equal_runs(run.path, tmp_path / "cut")
    rates = [line["lr"] for line in read_metrics(run.path) if "lr" in line]
    assert rates[0] < max(rates[1:])  # it begins anew


def test_killed_between_checkpoints(tmp_path, monkeypatch):
    """Lines that were written after the checkpoint, one of them half, are written again."""

    class Killed(BaseException):
        pass

    inner = training.Trainer._step

    def step(self, batches):
        if self.done == 5:
            raise Killed
        inner(self, batches)

    changes = {"train": {"log_every": 1, "save_every": 2, "val_every": 4}}
    train(config(**changes), tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_step", step)
        with pytest.raises(Killed):
            train(config(**changes), tmp_path / "cut")
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    assert load_checkpoint(tmp_path / "cut", "cpu")["done"] == 4
    resume(tmp_path / "cut")
    equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_run_that_had_no_checkpoint_yet_begins_again(tmp_path, monkeypatch):
    train(config(), tmp_path / "whole")

    def nothing(self, batches):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_step", nothing)
        with pytest.raises(KeyboardInterrupt):
            train(config(), tmp_path / "cut")
    resume(tmp_path / "cut")
    equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_stays_as_it_is(tmp_path):
    run = train(config(), tmp_path / "run")
    names = ("checkpoint.pt", "last.safetensors", "metrics.jsonl")
    before = [(run.path / name).read_bytes() for name in names]
    resume(run.path)
    assert before == [(run.path / name).read_bytes() for name in names]


def test_workers_do_not_matter(tmp_path, monkeypatch):
    root = folder_dataset(tmp_path / "data")
    train(config(data=on_disk(root)), tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            train(config(data={**on_disk(root), "workers": 2}), tmp_path / "cut")
    resume(tmp_path / "cut")
    equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_signals_are_left_as_they_were(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(config(train={"steps": 1}), tmp_path / "run")
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_a_second_interrupt_stops_at_once():
    with stop_signals() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_a_process_of_its_own(tmp_path, number):
    steps = 20
    changes = {"train": {"steps": steps, "log_every": 1, "val_every": steps}}
    path = config_file(tmp_path, **changes)
    process = started("train", path, "--out", tmp_path / "cut", "data.workers=2")
    metrics = tmp_path / "cut" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.005)
    os.killpg(process.pid, number)  # as a terminal and a scheduler do: the workers get it too
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    last = err.splitlines()[-1]
    done = load_checkpoint(tmp_path / "cut", "cpu")["done"]
    assert last == (
        f"logicdiag: stopped at step {done} of {steps}; go on with: logicdiag train --resume {tmp_path / 'cut'}"
    )
    assert "Traceback" not in err
    if number == signal.SIGTERM:
        return
    for arguments in (("--resume", tmp_path / "cut"), (path, "--out", tmp_path / "whole")):
        process = started("train", *arguments)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    equal_runs(tmp_path / "whole", tmp_path / "cut")


def test_tensorboard_of_a_resumed_run_has_every_line_once(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(Interrupted):
            train(config(), tmp_path / "run")
    resume(tmp_path / "run")
    board = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    lines = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert [event.step for event in board.Scalars("loss")] == [line["step"] for line in lines] == [2, 4, 6]


# ---- files that are not as they should be ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """A run of two steps out of six."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            train(config(method={"teacher_decay": 0.0}), path)
    return path


@pytest.fixture
def stopped(stopped_run, tmp_path):
    return shutil.copytree(stopped_run, tmp_path / "run")


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos 64 vs 0\nat x")]
)
def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(stopped, monkeypatch, error):
    before = {path.name: path.read_bytes() for path in stopped.iterdir() if path.suffix in (".pt", ".safetensors")}

    def fail(state, path):
        path.write_bytes(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail)
        with pytest.raises(
            RunError, match="checkpoint cannot be written, the one before is still there: .*(No space|un)"
        ):
            resume(stopped)
    assert before == {p.name: p.read_bytes() for p in stopped.iterdir() if p.suffix in (".pt", ".safetensors")}
    assert not list(stopped.glob(".*.part"))
    resume(stopped)
    assert load_checkpoint(stopped, "cpu")["done"] == 6


class Malicious:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_checkpoint_with_code_is_refused_and_not_run(stopped, tmp_path, how):
    evil = {"done": 1, "model": Malicious(f"touch {tmp_path / 'owned'}")}
    if how == "torch":
        torch.save(evil, stopped / "checkpoint.pt")
    else:
        (stopped / "checkpoint.pt").write_bytes(pickle.dumps(evil))
    with pytest.raises(RunError, match="checkpoint.pt cannot be read as a checkpoint") as caught:
        resume(stopped)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda run: (run / "checkpoint.pt").write_bytes(b"PK"), "checkpoint.pt cannot be read as a checkpoint"),
        (lambda run: torch.save({"done": 1}, run / "checkpoint.pt"), "checkpoint does not fit config.yaml: 'best' is"),
        (lambda run: torch.save([1], run / "checkpoint.pt"), "checkpoint does not fit config.yaml"),
        (lambda run: _edit(run, "decoder_channels: 8", "decoder_channels: 9"), "does not fit config.yaml"),
        (lambda run: _edit(run, "teacher_decay: 0.0", "teacher_decay: 0.9"), "config.yaml: 'teachers' is missing"),
        (lambda run: _edit(run, "labeled: 4", "labeled: 5"), r"data.labeled names other images .*\(4 then, 5 now\)"),
        (lambda run: _edit(run, "hierarchy_kind: official", "hierarchy_kind: none"), "another hierarchy now"),
        (lambda run: (run / "record.json").write_text("{"), "not a whole run folder: record.json cannot be read"),
        (lambda run: (run / "record.json").write_bytes(b"\xff"), "record.json cannot be read"),
        (lambda run: (run / "record.json").write_text("[]"), "record.json is not one of logicdiag's"),
        (lambda run: (run / "config.yaml").unlink(), "is no run folder: it has no config.yaml"),
    ],
)
def test_damaged_runs(stopped, damage, says):
    damage(stopped)
    with pytest.raises(RunError, match=says) as caught:
        resume(stopped)
    assert "\n" not in str(caught.value)


def _edit(run, old, new):
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new))


def test_the_weights_it_started_from_need_not_be_there(stopped, tmp_path, monkeypatch):
    weights = tmp_path / "start.safetensors"
    shutil.copy(stopped / "last.safetensors", weights)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            train(config(model={"weights": str(weights)}), tmp_path / "other")
    weights.unlink()
    resume(tmp_path / "other")
    assert load_checkpoint(tmp_path / "other", "cpu")["done"] == 6


def test_a_wrong_folder_is_named(stopped):
    with pytest.raises(RunError, match="did you mean 'run'"):
        resume(stopped.parent / "rum")


def test_cut_metrics(tmp_path):
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:2], "nonsense", lines[2], '{"st']))
    run_files.cut_metrics(tmp_path, 2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert (tmp_path / "metrics.jsonl").read_text() == "\n".join(lines[:2]) + "\n"
    run_files.cut_metrics(tmp_path / "nowhere", 2)


def test_opening_again_does_not_warn(stopped):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = resume(stopped)
    assert len(open_dataset(run.config.data, run.base).labeled) == 4
