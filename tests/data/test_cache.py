"""Images that stay in memory: the same views, from files that are opened once, and no others."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from logicdiag.data import DataConfig, Dataset, Masked, open_dataset
from logicdiag.data import cache as cache_module
from logicdiag.data.cache import remembered
from logicdiag.data.loader import Loader, Views
from logicdiag.errors import ConfigError, DataError

from . import archives


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """a is labelled; the masks of the others are none."""
    archives.folder(tmp_path)
    rng = np.random.default_rng(0)
    for i, path in enumerate(sorted((tmp_path / "images").iterdir())):
        Image.fromarray(rng.integers(0, 256, (4 + i, 6, 3), dtype=np.uint8)).save(path)
        archives.write(tmp_path / f"masks/{path.stem}.png", "no mask")
    archives.mask(tmp_path / "masks/a.png", [[0, 1, 2], [3, 255, 0]])
    archives.write(tmp_path / "splits/one.txt", "a")
    return tmp_path


def opened(root: Path) -> Dataset:
    return open_dataset(DataConfig(root=str(root), labeled="one"), None)


def views(items: Any, count: int = 8, **options: Any) -> list[Views]:
    with Loader(items, batch=2, crop=5, seed=1, stream="unlabeled", **options) as loader:
        return list(islice(loader, count))


def assert_same(some: list[Views], others: list[Views]) -> None:
    for a, b in zip(some, others, strict=True):
        assert torch.equal(a.image, b.image)
        assert (a.leaf is None) == (b.leaf is None)
        assert a.leaf is None or torch.equal(a.leaf, b.leaf)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_opened_once_and_by_one_process(root: Path, workers: int) -> None:
    plain, kept = opened(root), remembered(opened(root), True)
    labeled, unlabeled = views(plain.labeled), views(plain.unlabeled)
    assert_same(views(kept.labeled, workers=workers), labeled)
    assert_same(views(kept.unlabeled, workers=workers), unlabeled)  # their masks are unreadable, and not read
    for name in "abcd":
        (root / f"images/{name}.jpg").unlink()
    (root / "masks/a.png").unlink()
    assert_same(views(kept.labeled), labeled)
    assert_same(views(kept.unlabeled, workers=1), unlabeled)
    assert not kept.unlabeled[0].image().flags.writeable
    assert kept.unlabeled[0].where == str(root / "images/b.jpg")


def test_only_what_was_asked_for_is_opened(root: Path) -> None:
    kept = remembered(opened(root), True)
    kept.unlabeled[1].image()
    (root / "images/b.jpg").unlink()
    with pytest.raises(DataError, match="b.jpg: there is no such file"):
        kept.unlabeled[0].image()


def test_auto_keeps_what_is_small(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = opened(root)
    size = sum(item.image().size for item in (*data.labeled, *data.unlabeled, *data.val))
    size += sum(item.image().size // 3 for item in (*data.labeled, *data.val))
    assert remembered(data, False) is data
    assert remembered(data, "auto") is not data
    monkeypatch.setattr(cache_module, "MOST_BYTES", size)
    assert remembered(data, "auto") is not data
    assert remembered(data, "auto", processes=2) is data
    monkeypatch.setattr(cache_module, "MOST_BYTES", size - 1)
    assert remembered(data, "auto") is data
    assert remembered(data, True) is not data


def test_generated_images_are_not_kept() -> None:
    data = open_dataset(DataConfig(layout="scenes"), None)
    assert remembered(data, True) is data


def test_memory_that_cannot_be_had(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(cache_module.mmap, "mmap", refuse)
    data = opened(root)
    assert remembered(data, "auto") is data
    with pytest.raises(ConfigError, match=r"data.cache is true, but 0.0 GiB cannot be had"):
        remembered(data, True)


def test_what_is_sent_to_another_process_is_the_file(root: Path) -> None:
    kept = remembered(opened(root), True)
    sent = pickle.loads(pickle.dumps(kept.labeled[0]))
    assert isinstance(sent, Masked)
    assert sent.source == opened(root).labeled[0].source
    assert np.array_equal(sent.mask(), kept.labeled[0].mask())


def test_a_mask_of_another_size_is_still_named(root: Path) -> None:
    Image.new("L", (3, 3)).save(root / "masks/a.png")
    kept = remembered(opened(root), True)
    for _ in range(2):
        with pytest.raises(DataError, match="a: the image is 6 x 4 and its mask 3 x 3"):
            views(kept.labeled)


def test_a_broken_image_is_told_when_it_is_its_turn(root: Path) -> None:
    (root / "images/c.jpg").write_text("no image")
    kept = remembered(opened(root), True)
    assert kept.unlabeled[0].image().shape == (5, 6, 3)
    with pytest.raises(DataError, match="c.jpg: cannot be read as an image"):
        kept.unlabeled[1].image()


def test_a_value_that_is_none_of_the_three(root: Path) -> None:
    with pytest.raises(ConfigError, match="data.cache is 'yes please', expected auto, true or false"):
        remembered(opened(root), "yes please")
