"""Diagnose an array on disk that may be larger than memory: read in chunks, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .errors import LogicDiagError, OptionError, ProbabilityError
from .logic.blocks import blocks, check_shape
from .logic.diagnosis import Diagnoser
from .logic.hierarchy import Hierarchy
from .palette import picture_palette

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the pixels done, and all pixels."""

CHUNK = 1 << 18
"""Pixels read at a time."""
STRIP = 512
"""Width of `leaf.png` where the array is a list of pixels and has no shape of its own."""
NO_LEAF = 255
OUTPUTS = ("revised.npy", "leaf.png", "summary.json")


def load_probabilities(path: str | Path) -> Tensor:
    """A .npy array as a tensor on the file itself: pages are read as they are used, and never written."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise LogicDiagError(f"{path}: there is no such file") from None
    except (OSError, ValueError, EOFError):
        raise LogicDiagError(f"{path}: not a .npy array of numbers, or not all of one") from None
    if not isinstance(array, np.ndarray):
        raise LogicDiagError(f"{path}: an .npz archive, expected a .npy array")
    if not array.dtype.isnative:
        raise ProbabilityError(f"{path}: the array is {array.dtype}, of foreign byte order; save it in native order")
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise ProbabilityError(f"{path}: the array is {array.dtype}, expected float16, float32 or float64")
    if not 2 <= array.ndim <= 4:
        raise ProbabilityError(f"{path}: the array has shape {array.shape}, expected (N, n), (n, H, W) or (B, n, H, W)")
    return torch.from_numpy(array)


def concept_dim(probs: Tensor) -> int:
    """The usual place of concepts: (N, n), (n, H, W) or (B, n, H, W)."""
    return {2: 1, 3: 0, 4: 1}[probs.dim()]


def diagnose_file(
    path: str | Path,
    diagnoser: Diagnoser,
    out: str | Path,
    dim: int | None = None,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Diagnose `path` and write `revised.npy`, `leaf.png` and `summary.json` into the folder `out`.

    The truth degrees are measured over the whole array first. Returns the summary. `leaf.png` has a palette; several
    images stand one under the other, and a list of pixels is laid out in rows of 512; 255 means no single leaf. With
    more than 255 leaves it is a 16-bit image of leaf index + 1, and 0 means no single leaf.
    """
    probs = load_probabilities(path)
    h = diagnoser.kb.hierarchy
    if not 0 <= seed < 1 << 63:
        raise OptionError(f"seed is {seed}, expected a whole number from 0 to 2**63 - 1")
    if not str(out):
        raise OptionError("the folder to write to has an empty name")
    dim = concept_dim(probs) if dim is None else dim
    try:
        check_shape(probs, dim, h, None)
    except ProbabilityError as error:
        raise ProbabilityError(f"{path}: {error}") from None
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise LogicDiagError(f"{folder}: is a file, expected a folder to write to")
    for name in OUTPUTS:
        if (folder / name).is_dir():
            raise LogicDiagError(f"{folder / name}: is a folder, and a file of that name would be written")
        if (folder / name).exists() and (folder / name).samefile(path):
            raise LogicDiagError(f"{path}: would be overwritten by the result; choose another folder")
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _diagnose_into(folder, Path(path), probs, diagnoser, dim, seed, progress)
    except BaseException as error:
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if isinstance(error, ProbabilityError):
            raise _located(path, probs.movedim(dim, 0), dim, h) from None
        if isinstance(error, OSError):
            raise LogicDiagError(f"{folder}: cannot be written: {error.strerror}") from None
        raise


def _diagnose_into(
    folder: Path, path: Path, probs: Tensor, diagnoser: Diagnoser, dim: int, seed: int, progress: Progress
) -> dict[str, Any]:
    nodes_first = probs.movedim(dim, 0)
    total = nodes_first.shape[1:].numel()
    degrees = {}
    if diagnoser.uses_truth_degrees:
        meter = diagnoser.meter()
        for rows, done in _chunks(nodes_first):
            diagnoser.measure(meter, rows, dim=0)
            progress("truth degrees", done, total)
        degrees = meter.degrees()
    generator = torch.Generator().manual_seed(seed)
    tally = _Tally(diagnoser)
    with written_whole([folder / name for name in OUTPUTS]) as (revised_path, leaf_path, summary_path):
        revised = np.lib.format.open_memmap(revised_path, mode="w+", dtype=np.bool_, shape=tuple(probs.shape))
        _claim_space(revised_path)
        revised_first = torch.from_numpy(revised).movedim(dim, 0)
        leaf = torch.empty(nodes_first.shape[1:], dtype=torch.int32)
        finished = 0
        for block in blocks((nodes_first, revised_first), CHUNK):
            rows = block.rows(nodes_first)
            result = diagnoser(rows, dim=0, generator=generator, degrees=degrees)
            block.rows(revised_first).copy_(result.revised)
            block.pixels(leaf).copy_(result.leaf)
            tally.add(result)
            finished += rows.shape[1]
            progress("diagnosis", finished, total)
        revised.flush()
        del revised, revised_first
        _leaf_image(leaf, diagnoser.kb.hierarchy).save(leaf_path, format="PNG")
        summary = tally.summary(path, diagnoser, degrees, seed)
        summary_path.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return summary


def _claim_space(path: Path) -> None:
    """Have the file's blocks for sure: a full disk is then an error here, and not a crash while pages are written."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _chunks(nodes_first: Tensor) -> Iterator[tuple[Tensor, int]]:
    done = 0
    for block in blocks((nodes_first,), CHUNK):
        rows = block.rows(nodes_first)
        done += rows.shape[1]
        yield rows, done


def _located(path: str | Path, nodes_first: Tensor, dim: int, h: Hierarchy) -> ProbabilityError:
    """What is no probability in the whole array: how many values, and where the first one is."""
    count, first = 0, None
    for block in blocks((nodes_first,), CHUNK):
        rows = block.rows(nodes_first)
        wrong = ~((rows >= 0) & (rows <= 1))
        found = int(wrong.sum())
        if found and first is None:
            channel, offset = wrong.nonzero()[0].tolist()
            inner = nodes_first.shape[1 + len(block.lead) :]
            place = torch.unravel_index(torch.tensor(block.span.start + offset), inner) if inner else ()
            where = [*block.lead, *(int(i) for i in place)]
            where.insert(dim % nodes_first.dim(), channel)
            first = (where, h.names[channel], float(rows[channel, offset]))
        count += found
    assert first is not None
    return ProbabilityError(
        f"{path}: {count} value{'s are' if count > 1 else ' is'} not in [0, 1]; "
        f"the first is {first[2]:g} at {first[0]}, concept {first[1]!r}"
    )


class _Tally:
    """Counts over all chunks for the summary."""

    def __init__(self, diagnoser: Diagnoser) -> None:
        self.kb = diagnoser.kb
        self.pixels = self.conflicts = self.not_exhaustive = 0
        self.broken: Counter[str] = Counter()
        n = len(self.kb.hierarchy)
        self.to_true, self.to_false = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)

    def add(self, result: Any) -> None:
        """`result` is of rows, with concepts first."""
        self.pixels += result.conflict.numel()
        self.conflicts += int(result.conflict.sum())
        self.not_exhaustive += int((~result.exhaustive).sum())
        self.broken.update(self.kb.count_broken(result.observed.T))
        self.to_true += (result.revised & ~result.observed).sum(1)
        self.to_false += (result.observed & ~result.revised).sum(1)

    def summary(self, path: str | Path, diagnoser: Diagnoser, degrees: dict[str, Tensor], seed: int) -> dict[str, Any]:
        names = self.kb.hierarchy.names
        revisions = {
            name: {"to_true": up, "to_false": down}
            for name, up, down in zip(names, self.to_true.tolist(), self.to_false.tolist(), strict=True)
            if up or down
        }
        return {
            "array": str(path),
            "hierarchy": self.kb.hierarchy.title,
            "families": self.kb.families,
            "root": self.kb.root,
            "rules": [str(rule) for rule in self.kb.rules],
            "strategy": diagnoser.strategy,
            "seed": seed,
            "leaves": list(self.kb.hierarchy.leaves),
            "pixels": self.pixels,
            "conflicts": self.conflicts,
            "conflict_rate": self.conflicts / self.pixels if self.pixels else 0.0,
            "not_exhaustive": self.not_exhaustive,
            "broken_rules": dict(self.broken.most_common()),
            "revisions": revisions,
            "truth_degrees": {
                rule: dict(zip(names, [round(v, 6) for v in values.tolist()], strict=True))
                for rule, values in degrees.items()
            },
        }


def _leaf_image(leaf: Tensor, h: Hierarchy) -> Image.Image:
    if leaf.dim() == 1:
        rows = -(-leaf.numel() // STRIP) or 1
        picture = torch.full((rows * STRIP,), -1, dtype=leaf.dtype)
        picture[: leaf.numel()] = leaf
        leaf = picture.view(rows, STRIP)
    flat = leaf.reshape(-1, leaf.shape[-1]) if leaf.numel() else torch.full((1, 1), -1)  # no picture has no pixel
    if len(h.leaves) > NO_LEAF:
        return Image.fromarray((flat + 1).numpy().astype(np.uint16))
    indices = torch.where(flat < 0, NO_LEAF, flat).to(torch.uint8).numpy()
    image = Image.fromarray(indices)
    image.putpalette(picture_palette(h))
    return image


@contextmanager
def written_whole(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Files to write beside the given ones, moved there together when all is well and removed when not."""
    temporary: list[Path] = []
    try:
        for path in paths:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
            os.close(handle)
            temporary.append(Path(name))
        yield temporary
        for part, path in zip(temporary, paths, strict=True):
            with open(part, "rb") as file:
                os.fsync(file.fileno())  # a machine that goes down now has the old file or the new one, whole
            part.chmod(0o666 & ~_umask())
            part.replace(path)
    finally:
        for part in temporary:
            part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
