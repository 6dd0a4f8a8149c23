"""Compiled networks: the same losses, the same checkpoints; and a machine that cannot compile."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from logicdiag.engine import fast
from logicdiag.engine.distributed import World
from logicdiag.engine.run import load_checkpoint, open_run, read_metrics
from logicdiag.engine.stop import Interrupted
from logicdiag.engine.train import resume, train

from .small import config, same, stop_after

THRESHOLD = {"psi": {"name": "threshold", "threshold": 0.1}, "model": {"dropout": 0.3}}
ARRANGED = {
    "fixmatch": {**THRESHOLD, "method": {"teacher_decay": 0.9}},
    "unimatch": {**THRESHOLD, "method": {"name": "unimatch", "teacher_decay": 0.0}},
    "cps": {**THRESHOLD, "method": {"name": "cps", "teacher_decay": 0.9}},
    "mkd": {**THRESHOLD, "method": {"name": "mkd", "teacher_decay": 0.9}},
}


@pytest.fixture
def quick(monkeypatch, request):
    """All of torch's compiler but the last part, which writes C++ or Triton and takes its time; or the first alone."""
    calls = []

    def compiled(network):
        calls.append(network)
        return torch.compile(network, backend=getattr(request, "param", "eager"), dynamic=False)

    monkeypatch.setattr(fast, "compiled", compiled)
    return calls


def losses(run):
    return [line["loss"] for line in read_metrics(run.path) if "loss" in line]


def arranged(method, **options):
    return config(**ARRANGED[method], train={"steps": 4, "log_every": 1, **options})


@pytest.mark.parametrize("quick", ["aot_eager"], indirect=True)
@pytest.mark.parametrize("method", list(ARRANGED))
def test_compiled_or_not_the_losses_are_the_same(tmp_path, quick, method, capsys):
    plain = train(arranged(method), tmp_path / "plain")
    assert not quick
    compiled = train(arranged(method, compile=True), tmp_path / "compiled")
    assert quick
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    states = [load_checkpoint(run.path, "cpu") for run in (plain, compiled)]
    assert list(states[0]["model"]) == list(states[1]["model"])
    start = json.loads((compiled.path / "record.json").read_text())["start"]
    assert (start["steps"], start["compiled"], start["captured"]) == (1, True, False)
    assert start["seconds"] > 0
    assert "the first step took" in capsys.readouterr().err
    assert "start" not in json.loads((plain.path / "record.json").read_text())
    compiled.model("last")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_by_inductor_the_losses_are_the_same(tmp_path):
    if (problem := fast.compile_problem(torch.device("cpu"))) is not None:
        pytest.skip(problem)
    runs = [train(arranged("fixmatch", compile=c), tmp_path / str(c)) for c in (False, True)]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), rel=1e-3)


def test_a_compiled_run_is_resumed_exactly(tmp_path, quick, monkeypatch):
    changes = arranged("fixmatch", compile=True)
    whole = train(changes, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            train(changes, tmp_path / "cut")
    plainly = shutil.copytree(tmp_path / "cut", tmp_path / "plainly")
    resume(tmp_path / "cut")
    same(load_checkpoint(whole.path, "cpu"), load_checkpoint(tmp_path / "cut", "cpu"))
    count = len(quick)
    resume(plainly, ["train.compile=false"])
    assert len(quick) == count
    assert losses(open_run(plainly)) == pytest.approx(losses(whole), rel=1e-4)


def test_a_machine_that_cannot_compile_says_so_and_goes_on(tmp_path, monkeypatch, capsys):
    def missing(network):
        def call(*_):
            raise RuntimeError("backend='inductor' raised:\nRuntimeError: Failed to find C compiler.\n\nSet TORCH_LOGS")

        return call

    plain = train(arranged("fixmatch"), tmp_path / "plain")
    monkeypatch.setattr(fast, "compiled", missing)
    run = train(arranged("fixmatch", compile=True), tmp_path / "run")
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warnings == [
        "warning: the networks are not compiled, and training is slower: RuntimeError: Failed to find C compiler."
    ]
    assert losses(run) == losses(plain)
    assert "start" not in json.loads((run.path / "record.json").read_text())


def test_when_compiling_pays():
    long, short = config(train={"steps": 40_000}).train, config(train={"steps": 39_999}).train
    gpu = World(device="cuda")
    assert fast.wants_compiling(long, gpu)
    assert not fast.wants_compiling(short, gpu)
    assert not fast.wants_compiling(long, World())
    assert not fast.wants_compiling(long, World(0, 2, "cuda"))
    assert fast.wants_compiling(config(train={"steps": 1, "compile": True}).train, World())
    assert not fast.wants_compiling(config(train={"steps": 9000, "compile": False}).train, gpu)


def test_evaluation_calls_the_networks_as_they_are(tmp_path, quick):
    """Images of validation come in many sizes; each would be compiled for."""
    sizes = []

    def watch(trainer):
        if trainer.done == 1:
            trainer.method.evaluated.register_forward_hook(
                lambda module, args, out: sizes.append((tuple(args[0].shape), torch.compiler.is_compiling()))
            )

    train(arranged("unimatch", compile=True, val_every=2), tmp_path / "run", observe=watch)
    evaluated = [compiling for shape, compiling in sizes if shape[-1] == 40]
    assert evaluated
    assert not any(evaluated)


def test_convolutions_are_searched_on_a_gpu_alone():
    before = torch.backends.cudnn.benchmark
    with fast.searched(torch.device("cpu")):
        assert torch.backends.cudnn.benchmark == before
    with fast.searched(torch.device("cuda")):
        assert torch.backends.cudnn.benchmark
        with fast.searched(torch.device("cuda"), False):
            assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before


FAULTS = """
import resource, torch
from logicdiag.engine.fast import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert not keep_memory(torch.device("cuda"))
first = faults()
kept = keep_memory(torch.device("cpu"))
faults()
print(kept, first, faults())
"""


def test_freed_memory_is_kept():
    """In a process of its own: pages come from the system once, and not for every tensor."""
    shown = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout.split()
    if shown[0] == "False":
        pytest.skip("no malloc that can be told")
    assert 10 * int(shown[2]) < int(shown[1])
