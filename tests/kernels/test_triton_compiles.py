import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="needs Triton")


def test_every_kernel_compiles_for_a_gpu(tmp_path):
    """Also where there is none: the compiler comes with Triton."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.triton_compile"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == f"all {len(lines) - 1}"
    kernels = {line.split()[0] for line in lines[:-1]}
    assert kernels >= {"_diagnose", "_add_few", "_add_many", "_total", "_degrees", "_forward", "_backward", "_colour"}
    assert kernels >= {"_gathered", "_spread_out", "_weight_sums", "_add_up"}
    assert kernels >= {"_statistics", "_normalise", "_sums", "_gradient"}
    assert kernels >= {"_forward_shares", "_backward_shares"}
    assert all(int(line.split()[1]) > 0 for line in lines[:-1])
