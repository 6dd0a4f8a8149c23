"""What a run writes down as it goes: metrics.jsonl and TensorBoard, and validation as a line of numbers and of text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .evaluation import Evaluation


@contextmanager
def open_log(path: Path, start: int, first: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Writes to metrics.jsonl and TensorBoard, in the first process alone."""
    if not first:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with (
        open(path / "metrics.jsonl", "a", encoding="utf-8") as file,
        SummaryWriter(path / "tensorboard", purge_step=start + 1) as board,
    ):

        def log(line: dict[str, Any]) -> None:
            finite = {name: value if math.isfinite(value) else None for name, value in line.items()}  # JSON has no NaN
            file.write(json.dumps(finite) + "\n")
            file.flush()
            for name, value in line.items():
                if name != "step":
                    board.add_scalar(name, value, line["step"])

        yield log


def val_line(found: Evaluation) -> dict[str, float]:
    line = {f"val/miou_level{level.level}": level.miou for level in found.levels}
    line |= {"val/miou": found.miou, "val/accuracy": found.accuracy, "val/severity": found.severity.mean}
    return line | ({} if found.violations is None else {"val/violations": found.violations.share})


def val_text(found: Evaluation) -> str:
    above = "  ".join(f"level {level.level}: {100 * level.miou:.2f}" for level in found.levels[:-1])
    broken = "" if found.violations is None else f"  violations {found.violations.share:.1%}"
    return f"validation mIoU {100 * found.miou:.2f}{f'  ({above})' * bool(above)}{broken}"
