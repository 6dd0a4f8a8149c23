"""Whoever runs several runs on one GPU is told of the service that lets them share it."""

import pytest

from logicdiag.experiment import mps


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """One that has the service, which is off."""
    control = tmp_path / mps.CONTROL
    control.write_text("#!/bin/sh\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipes"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)
    return tmp_path


def test_advice(machine):
    told = "14 runs side by side on one GPU may be 1.4 times as fast after `nvidia-cuda-mps-control -d`"
    assert mps.advice(14) == f"{told}, which is not on"


def test_no_advice_where_it_helps_nobody(machine, monkeypatch):
    assert mps.advice(1) is None
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert mps.advice(14) is None
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(machine / "nowhere"))
        assert mps.advice(14) is None
    (machine / "pipes").mkdir()
    (machine / "pipes" / "control").touch()
    assert mps.advice(14) is None


def test_a_part_of_a_gpu_is_warned_of(machine, monkeypatch):
    (machine / "pipes").mkdir()
    (machine / "pipes" / "control").touch()
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    assert mps.advice(14) is None
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20")
    assert mps.advice(14).startswith("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is 20, and on a part of a GPU cuDNN")


def test_where_the_service_is_by_default(machine, monkeypatch):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setattr(mps.tempfile, "gettempdir", lambda: str(machine))
    assert mps.advice(2) is not None
    (machine / "nvidia-mps").mkdir()
    (machine / "nvidia-mps" / "control").touch()
    assert mps.advice(2) is None
