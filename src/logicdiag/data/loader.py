"""Weak views: scale, crop and flip of items, an endless stream that is a pure function of (seed, stream, step, slot).

Workers decode an item and cut the window that its crop needs; the batch travels in one piece, and is resampled on the
device. On a GPU that happens on a stream of its own, one batch ahead, while the batch before it is learned from.
"""

from __future__ import annotations

import signal
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..errors import DataError, LogicDiagError, OptionError
from .dataset import Masked, Photo
from .resample import place
from .views import draws
from .windows import Packed, Window, develop, pack
from .witness import rows_of

AHEAD = 4
"""Batches that the host may be ahead of a GPU: enough to keep it busy, and a bound on the memory of views that wait."""


@dataclass(frozen=True)
class Views:
    """A micro-batch of weak views, on the training device."""

    image: Float[Tensor, "b 3 h w"]
    """In [0, 1], not normalised; padding is mid gray."""
    leaf: Int64[Tensor, "b h w"] | None
    """Index into the hierarchy's leaves, -1 for ignore and padding; None for unlabelled images."""
    valid: Bool[Tensor, "b h w"]
    """False in padding."""
    step: int
    slots: tuple[int, ...]
    """Which places of the global batch these are."""
    heard: Float[Tensor, "b n"] | None = None
    """What a witness says of the images; None: there is none."""

    def __len__(self) -> int:
        return len(self.slots)


class Loader:
    """An endless iterator of `Views`; close it, or use it in a `with` block.

    `batch` is the global batch of one optimiser step, cut into `parts * accumulate` equal runs of slots; for each step
    this part yields `accumulate` micro-batches, and micro-batch m holds run `m * parts + part`. Items come in a fresh
    permutation for each epoch; with `shown` (a class -> the items that show it), classes do, each in one of its items,
    and a view lies around a pixel of its class. To go on at a step, `start` there.
    """

    def __init__(
        self,
        items: Sequence[Photo],
        *,
        batch: int,
        crop: int,
        scale: Sequence[float] = (0.5, 2.0),
        flip: float = 0.5,
        seed: int = 0,
        stream: str,
        device: torch.device | str = "cpu",
        workers: int = 0,
        start: int = 0,
        part: int = 0,
        parts: int = 1,
        accumulate: int = 1,
        context: str | None = None,
        shown: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        if not len(items):
            raise DataError(f"there are no {stream} images to load")
        if batch < 1 or batch % (parts * accumulate):
            raise OptionError(
                f"the {stream} batch is {batch}, expected a multiple of {parts * accumulate} "
                f"({parts} process{'es' * (parts > 1)} x {accumulate} accumulated)"
            )
        if len(scale) != 2 or not 0 < scale[0] <= scale[1]:
            raise OptionError(f"scale is {list(scale)}, expected two numbers above 0, the smaller one first")
        if crop < 1:
            raise OptionError(f"crop is {crop}, expected at least 1 pixel")
        if seed < 0:
            raise OptionError(f"seed is {seed}, expected 0 or more")
        self.device = torch.device(device)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._ahead: _Made | LogicDiagError | None = None
        self._given: deque[torch.cuda.Event] = deque()
        if shown is not None and not all(shown.values()):
            raise OptionError("shown has a class with no items, expected at least one for each")
        classes = None if not shown else tuple((leaf, tuple(of)) for leaf, of in shown.items())
        source = _Source(tuple(items), batch, crop, (float(scale[0]), float(scale[1])), flip, seed, stream, classes)
        with warnings.catch_warnings():
            # Workers only decode, on one thread; nothing of the parent's threads is used after the fork. How many of
            # them there are is the user's choice.
            warnings.filterwarnings("ignore", "This process.*is multi-threaded", DeprecationWarning)
            warnings.filterwarnings("ignore", "This DataLoader will create .* worker processes", UserWarning)
            loader = DataLoader(
                source,
                batch_size=None,  # the source makes whole batches
                sampler=_Slots(batch, start, part, parts, accumulate),
                num_workers=workers,
                collate_fn=_as_it_is,
                pin_memory=self.device.type == "cuda",
                multiprocessing_context=context if workers else None,
                worker_init_fn=_ignore_interrupt,
                generator=torch.Generator(),  # its own: opening a loader leaves the global generator where it was
            )
            self._batches: Iterator[Any] | None = iter(loader)

    def __iter__(self) -> Iterator[Views]:
        return self

    def __next__(self) -> Views:
        if self._batches is None:
            raise StopIteration
        made, self._ahead = self._ahead or self._make(), None
        if isinstance(made, LogicDiagError):
            self.close()
            raise made
        if self._stream is not None:
            self._ahead = self._make()
            self._hand_over(made)
        return made.views

    def _make(self) -> _Made | LogicDiagError:
        """The next batch; on a GPU it is in the making on the stream aside."""
        assert self._batches is not None
        try:
            cut: _Cut | LogicDiagError = next(self._batches)
        except BaseException:
            self.close()
            raise
        if isinstance(cut, LogicDiagError):
            return cut
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            heard = None if cut.heard is None else cut.heard.to(self.device, non_blocking=True)
            views = Views(*develop(cut.windows, self.device), cut.step, cut.slots, heard)
            ready = None if self._stream is None else self._stream.record_event()
        return _Made(views, ready)

    def _hand_over(self, made: _Made) -> None:
        """From the stream aside to the one that the caller is on."""
        caller = torch.cuda.current_stream(self.device)
        if made.ready is not None:
            caller.wait_event(made.ready)
        for tensor in (made.views.image, made.views.leaf, made.views.valid, made.views.heard):
            if tensor is not None:
                tensor.record_stream(caller)  # it is not free for the next batch before the caller is done with it
        self._given.append(caller.record_event(torch.cuda.Event(blocking=True)))
        if len(self._given) > AHEAD:
            self._given.popleft().synchronize()

    def close(self) -> None:
        """End the workers."""
        batches, self._batches, self._ahead = self._batches, None, None
        shutdown = getattr(batches, "_shutdown_workers", None)  # there are none without workers
        if shutdown is not None:
            shutdown()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- in the workers ----------------------------------------------------------------------------------------------


def _ignore_interrupt(_: int) -> None:
    """Ctrl-C, and a scheduler's SIGTERM, reach all processes of a group; the trainer answers them, and may yet want a
    batch to end its step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Slots(Sampler[list[tuple[int, int]]]):
    """The (step, slot) pairs of each micro-batch of this part."""

    def __init__(self, batch: int, start: int, part: int, parts: int, accumulate: int) -> None:
        self.start, self.part, self.parts, self.accumulate = start, part, parts, accumulate
        self.size = batch // (parts * accumulate)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in count(self.start):
            for micro in range(self.accumulate):
                first = (micro * self.parts + self.part) * self.size
                yield [(step, slot) for slot in range(first, first + self.size)]


class _Cut(NamedTuple):
    """A micro-batch, as workers send it."""

    step: int
    slots: tuple[int, ...]
    windows: Packed
    heard: Tensor | None

    def pin_memory(self) -> _Cut:
        """`DataLoader` asks for this where batches go to a GPU."""
        heard = None if self.heard is None else self.heard.pin_memory()
        return self._replace(windows=self.windows.pinned(), heard=heard)


@dataclass(frozen=True)
class _Source(Dataset[Any]):
    items: tuple[Photo, ...]
    batch: int
    crop: int
    scale: tuple[float, float]
    flip: float
    seed: int
    stream: str
    shown: tuple[tuple[int, tuple[int, ...]], ...] | None = None

    def __getitem__(self, keys: list[tuple[int, int]]) -> _Cut | LogicDiagError:
        try:
            windows = pack([self.window(*key) for key in keys])
        except LogicDiagError as error:
            return error  # as a value: raised in a worker it would come out wrapped in that worker's traceback
        heard = self.heard([self.chosen(*key)[0] for key in keys])
        return _Cut(keys[0][0], tuple(slot for _, slot in keys), windows, heard)

    def heard(self, photos: Sequence[Photo]) -> Tensor | None:
        """What a witness says of them; None where it says nothing of any image."""
        return None if self.concepts is None else torch.from_numpy(rows_of(photos, self.concepts))

    @cached_property
    def concepts(self) -> int | None:
        """How many there are in what is heard."""
        return next((len(item.heard) for item in self.items if item.heard is not None), None)

    def chosen(self, step: int, slot: int) -> tuple[Photo, int | None]:
        """An item, and the class that the view is to show, if there is one."""
        every = self.items if self.shown is None else self.shown
        epoch, at = divmod(step * self.batch + slot, len(every))
        number = int(_order(self.seed, self.stream, epoch, len(every))[at])
        if self.shown is None:
            return self.items[number], None
        leaf, of = self.shown[number]
        (g,) = draws(self.seed, f"{self.stream}.of_class", step, (slot,))
        return self.items[of[g.integers(len(of))]], leaf

    def window(self, step: int, slot: int) -> Window:
        item, leaf = self.chosen(step, slot)
        image = item.image()
        mask = item.mask() if isinstance(item, Masked) else None
        if mask is not None and mask.shape != image.shape[:2]:
            sizes = [f"{w} x {h}" for h, w in (image.shape[:2], mask.shape[:2])]
            raise DataError(f"{item.name}: the image is {sizes[0]} and its mask {sizes[1]}, expected the same size")
        (g,) = draws(self.seed, self.stream, step, (slot,))
        factor = g.uniform(*self.scale)
        row, column = (None, None) if mask is None or leaf is None else _pixel_of(mask, leaf, g, item.where)
        rows = place(image.shape[0], factor, self.crop, g, row)
        columns = place(image.shape[1], factor, self.crop, g, column)
        if g.random() < self.flip:
            columns = columns._replace(flip=True)
        cut = np.s_[rows.start : rows.stop, columns.start : columns.stop]
        return Window(image[cut], None if mask is None else mask[cut], rows, columns)


def _pixel_of(mask: NDArray[np.uint8], leaf: int, g: np.random.Generator, where: str) -> tuple[int, int]:
    """The row and column of one of its pixels."""
    pixels = np.flatnonzero(mask == leaf)
    if not len(pixels):
        raise DataError(f"{where}: the mask does not show any more what it showed when training began")
    row, column = divmod(int(pixels[g.integers(len(pixels))]), mask.shape[1])
    return row, column


@lru_cache(maxsize=8)
def _order(seed: int, stream: str, epoch: int, n: int) -> NDArray[np.int64]:
    (g,) = draws(seed, f"{stream}.order", epoch, (0,))
    return g.permutation(n)


def _as_it_is(cut: Any) -> Any:
    return cut


class _Made(NamedTuple):
    """A micro-batch on the training device."""

    views: Views
    ready: torch.cuda.Event | None
    """On a GPU: when the views are."""
