"""The benchmarks run small on a CPU; what they measure is not looked at."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


def run(script: str, *arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(FOLDER / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("script", "arguments", "columns"),
    [
        ("kernels.py", ["--quick"], "operation backend device tree nodes dtype pixels ms floor_ms"),
        ("step.py", ["--steps", "1", "--variants", "logicdiag"], "encoder method psi head size batch ms memory_gib"),
    ],
)
def test_rows(tmp_path, script, arguments, columns):
    shown = run(script, *arguments, "--out", str(tmp_path / "rows.csv"))
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == columns.split()
    assert all(float(row["ms"]) > 0 for row in rows)
    assert shown.count("\n|") >= len(rows)


def test_the_methods(tmp_path):
    """Each is held against fixmatch, asked for or not; one without unlabelled images has no psi to add."""
    shown = run("methods.py", "--steps", "1", "--methods", "st++,supervised", "--out", str(tmp_path / "rows.csv"))
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["fixmatch", "st++", "supervised"]
    keys = ("threshold_ms", "diagnosis_ms", "threshold_gib", "diagnosis_gib")
    assert all(float(row[key]) >= 0 for row in rows.values() for key in keys)
    assert rows["supervised"]["threshold_ms"] == rows["supervised"]["diagnosis_ms"]
    assert shown.count("\n| small | 97 | fixmatch | ") == 1


def test_the_explorer_s():
    shown = run("explore.py", "--size", "33", "--pixels", "3", "--hierarchy", "voc2012")
    assert shown.startswith("33 x 33 pixels, 24 classes")
    assert shown.count("\n| ") == 8


def test_depthwise_layers_on_a_cpu():
    shown = run("depthwise_cpu.py", "--size", "64", "--batch", "1", "--repeats", "1")
    rows = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows][:3] == ["| PyTorch's", "| PyTorch's, channels last", "| ours"]
    assert all(float(row[1]) > 0 for row in rows)


def test_depthwise_layers():
    """On a CPU only their bytes."""
    shown = run("depthwise.py", "--encoders", "tf_efficientnet_lite0:64", "--batch", "2")
    rows = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")][1:]
    assert rows[0][:3] == ["| 32 x 32 x 32, 3 x 3 / 1", "1", "0.3"]
    assert sum(int(row[1]) for row in rows[:-1]) == int(rows[-1][1]) == 16


def test_norm_layers():
    """On a CPU only their bytes."""
    shown = run("norm.py", "--encoders", "tf_efficientnet_lite0:64", "--batch", "2")
    rows = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")][1:]
    assert rows[0][:3] == ["| 32 x 32 x 32, relu6", "2", "0.1"]
    assert sum(int(row[1]) for row in rows[:-1]) == int(rows[-1][1]) == 62
