"""NVIDIA's multi-process service, with which processes on one GPU compute at the same time, and not by turns."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""How much of the GPU a process of the service may use. With 20 (H200, torch 2.11, cuDNN 9.19) 392 of 396 runs had
NaN within their first steps: gradients are wrong there, and `engine.arithmetic` refuses it.
"""


def advice(jobs: int) -> str | None:
    """What to do first where runs are to share a GPU: give nobody a part of it, and start the service if it is off."""
    if (share := os.environ.get(SHARE, "100")) != "100":
        return f"{SHARE} is {share}, and on a part of a GPU cuDNN was seen to compute wrong gradients; unset it"
    if jobs < 2 or shutil.which(CONTROL) is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path(tempfile.gettempdir(), "nvidia-mps"))
    if (pipes / "control").exists():
        return None
    return f"{jobs} runs side by side on one GPU may be 1.4 times as fast after `{CONTROL} -d`, which is not on"
