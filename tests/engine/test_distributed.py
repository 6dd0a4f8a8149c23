"""Two processes are one: the same losses as a single process with the same batch."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from logicdiag.data.open import open_dataset
from logicdiag.engine.check import check
from logicdiag.engine.distributed import World, choose_device
from logicdiag.engine.run import load_checkpoint, read_metrics
from logicdiag.engine.train import resume, train
from logicdiag.errors import ConfigError

from .small import config, config_file, started

STEPS = 4


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def two_processes(*arguments):
    """As `torchrun --nproc-per-node=2` starts them."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        started("train", *arguments, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)
    ]
    told = [process.communicate(timeout=120) for process in processes]
    return [process.returncode for process in processes], told


SHORT = {"steps": STEPS, "log_every": 1, "val_every": STEPS, "labeled_batch": 4, "unlabeled_batch": 4}
KEYS = ("loss", "loss/labeled", "loss/unlabeled", "loss/features", "loss/contrast", "conflict", "counted", "lr")
ARRANGED = {
    "fixmatch": {"psi": {"weight": "posterior"}},
    "unimatch": {"method": {"name": "unimatch", "teacher_decay": 0.9}, "psi": {"quantifier": "min"}},
    "ael": {"method": {"name": "ael", "teacher_decay": 0.9, "ael": {"paste": 1.0}}},
    "st++": {"method": {"name": "st++", "teacher_decay": 0.9}, "train": {**SHORT, "steps": 8}},
    "u2pl": {"method": {"name": "u2pl", "teacher_decay": 0.9, "u2pl": {"queue": 300, "anchors": 64}}},
}


RANKING = ("u2pl", "ael", "st++")
"""Methods whose losses depend on which of two pixels or images is surer."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network that knows something: one that starts is equally unsure of all pixels, and ranks them by rounding."""
    path = tmp_path_factory.mktemp("trained") / "run"
    schedule = {"steps": 40, "val_every": 40, "labeled_batch": 4}
    train(config(method={"name": "supervised"}, train=schedule, optimizer={"lr": 0.02}), path)
    return path / "last.safetensors"


USUAL = ("fixmatch", "st++")
"""The others' steps are held together by tests/methods; their whole runs take long."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in ARRANGED]
)
def test_two_processes_are_one(tmp_path, method, trained):
    changes = {
        "model": {"weights": str(trained) if method in RANKING else None},
        "data": {"views": {"cutmix": 1.0}},
        "train": SHORT,
        **ARRANGED[method],
    }
    codes, told = two_processes(config_file(tmp_path, **changes), "--out", tmp_path / "two")
    assert codes == [0, 0], told
    assert told[0][0].startswith("done: ")
    assert told[1] == ("", "")  # only the first one speaks
    train(config(**changes), tmp_path / "one")
    two, one = (read_metrics(tmp_path / name) for name in ("two", "one"))
    assert len(two) == changes["train"]["steps"] * (STEPS + 1) // STEPS
    for mine, theirs in zip(two, one, strict=True):
        assert list(mine) == list(theirs)
        for key in KEYS:
            if key in mine:
                assert mine[key] == pytest.approx(theirs[key], rel=1e-4), (mine["step"], key)
        for key in ("val/miou", "val/accuracy"):
            if key in mine:
                assert mine[key] == pytest.approx(theirs[key], abs=0.02)
    weights = [load_checkpoint(tmp_path / name, "cpu")["model"] for name in ("two", "one")]
    assert weights[0].keys() == weights[1].keys()
    for key, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][key], rtol=1e-2, atol=1e-3, msg=key)


def test_two_processes_are_interrupted_and_one_goes_on(tmp_path):
    """Saved together at a step of ten; a single process may take over."""
    changes = {"train": {"steps": 20, "log_every": 1, "val_every": 20, "unlabeled_batch": 4}}
    path = config_file(tmp_path, **changes)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        started("train", path, "--out", tmp_path / "run", env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    metrics = tmp_path / "run" / "metrics.jsonl"
    while all(process.poll() is None for process in processes) and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    processes[1].send_signal(signal.SIGTERM)  # one is enough
    told = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [130, 130], told
    done = load_checkpoint(tmp_path / "run", "cpu")["done"]
    assert 0 < done < 20
    assert done % 10 == 0
    assert told[0][1].splitlines()[-1].startswith(f"logicdiag: stopped at step {done} of 20")
    assert told[1] == ("", "")  # said once
    resume(tmp_path / "run")
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 21))


LEAVES = """
from pathlib import Path
import torch
from logicdiag.engine.distributed import world

with world("cpu") as here:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    here.wait()
print(*(thread.joinpath("comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs a list of threads")
def test_no_thread_outlives_the_world():
    """One that does may end the process with an error, when Python has ended and the thread lets go of a tensor."""
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(names.strip() and "gloo" not in names for names in told), told


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path):
    codes, told = two_processes(config_file(tmp_path, train={"labeled_batch": 3}), "--out", tmp_path / "run")
    assert codes == [2, 2]
    says = "logicdiag: train.labeled_batch is 3, expected a multiple of 2 (2 processes, train.accumulate 1)"
    assert told[0][1].splitlines()[-1] == says
    assert not (tmp_path / "run").exists()


def test_partners_of_cutmix_are_in_one_process():
    """However a batch is cut, neighbours stay together."""
    c = config(train={"unlabeled_batch": 6})
    data = open_dataset(c.data)
    check(c, data, 1)
    with pytest.raises(ConfigError, match="unlabeled_batch is 6, so each of 2 parts has 3; CutMix pairs neighbours"):
        check(c, data, 2)
    check(config(train={"unlabeled_batch": 6}, data={"views": {"cutmix": 0.0}}), data, 2)
    check(config(train={"unlabeled_batch": 6}, method={"name": "supervised"}), data, 2)


def test_alone_nothing_is_shared():
    here = World()
    tensor = torch.tensor([1.0, 2.0])
    assert here.add(tensor) is tensor
    assert here.most(tensor) is tensor
    assert torch.equal(here.gather(tensor), tensor[None])
    assert here.any(True)
    assert not here.any(False)
    assert here.is_first
    here.wait()


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    for name in ("cpuu", "gpu", "", "meta"):
        with pytest.raises(ConfigError, match="expected auto, cpu, cuda, cuda:1 or mps"):
            choose_device(name)
    if not torch.cuda.is_available():
        assert choose_device("auto") == torch.device("cpu")
        with pytest.raises(ConfigError, match="train.device is cuda:3, but this machine has 0 CUDA devices"):
            choose_device("cuda:3")
