"""`data check` names everything that is wrong, and goes on."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image
from rich.console import Console

from logicdiag.data import DataConfig, ScenesConfig, files
from logicdiag.data.check import check
from logicdiag.data.report import Report

from . import archives


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archives.folder(tmp_path, train=("a", "b", "c", "d", "e", "f"), val=("v", "w"))
    archives.write(tmp_path / "splits/few.txt", "a\nb\n")
    return tmp_path


def checked(at: Path, **options: Any) -> Report:
    return check(DataConfig(**{"root": str(at), "labeled": "few", **options}))


def kinds(report: Report) -> list[str]:
    return [finding.kind for finding in report.findings]


def text(report: Report) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(report.render())
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_nothing_wrong(root: Path) -> None:
    report = checked(root)
    assert report.ok
    assert not report.findings
    splits, classes = report.tables()
    assert [row[:5] for row in splits.rows] == [
        ("labeled", "2", "6 x 4", "6 x 4", "6 x 4"),
        ("unlabeled", "4", "6 x 4", "6 x 4", "6 x 4"),
        ("val", "2", "6 x 4", "6 x 4", "6 x 4"),
    ]
    assert classes.columns == ("class", "labeled images", "labeled pixels", "val images", "val pixels")
    assert classes.rows[1] == ("bird", "2", "33.33%", "2", "33.33%")
    assert classes.rows[-1] == ("ignored", "2", "16.67%", "2", "16.67%")
    assert "no errors, no warnings" in text(report)


@pytest.mark.parametrize(
    ("orientation", "size", "warned"),
    [
        (1, (4, 6), False),
        (3, (4, 6), True),
        (2, (4, 6), True),
        (6, (4, 6), False),
        (6, (6, 4), False),
        (6, (4, 4), True),
    ],
)
def test_turned_images_that_sizes_cannot_tell(
    root: Path, orientation: int, size: tuple[int, int], warned: bool
) -> None:
    """`size` is of the stored image; the mask is 4 x 6, or square."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    for name in ("a", "c", "v"):  # labelled, unlabelled, for evaluation
        Image.new("RGB", size[::-1]).save(root / f"images/{name}.jpg", exif=exif)
        if size == (4, 4):
            archives.mask(root / f"masks/{name}.png", [[0, 1], [2, 3]])
    report = checked(root)
    assert report.ok
    turned = [finding for finding in report.findings if finding.kind == "turned"]
    assert [finding.split for finding in turned] == (["labeled", "val"] if warned else [])
    assert len(turned) == len(report.findings)
    if warned:
        assert "images/a.jpg: the camera marks the image as turned or mirrored" in str(turned[0])


def test_everything_wrong_is_reported_at_once(root: Path) -> None:
    archives.write(root / "splits/few.txt", "a\nb\nc\nd\nnone\nf\na")
    archives.mask(root / "masks/a.png", [[0, 9, 9], [1, 2, 3]])
    archives.photo(root / "masks/b.png")
    archives.photo(root / "images/c.jpg", 8, 6)
    whole = archives.photo(root / "images/d.jpg", 64, 64).read_bytes()
    (root / "images/d.jpg").write_bytes(whole[:-300])
    (root / "masks/f.png").unlink()
    (root / "images/e.jpg").write_bytes(b"")
    archives.write(root / "splits/val.txt", "v\na")
    report = checked(root)
    assert not report.ok
    messages = {finding.kind: str(finding) for finding in report.findings}
    assert set(messages) == {"missing", "wrong_ids", "colour", "size", "unreadable", "duplicate", "overlap", "few"}
    assert "masks/a.png: the mask has ids that stand for no class: 9 (8 pixels); allowed are 0-3, 255" in text(report)
    assert "masks/b.png: a colour mask (mode RGB)" in messages["colour"]
    assert "masks/c.png: the mask is 6 x 4, and" in messages["size"]
    assert "images/c.jpg is 6 x 8" in messages["size"]
    broken = [finding.message for finding in report.findings if finding.kind == "unreadable"]
    assert ["d.jpg" in broken[0], "e.jpg" in broken[1]] == [True, True]
    missing = [finding.message for finding in report.findings if finding.kind == "missing"]
    assert ["'none'" in missing[0], "masks/f.png" in missing[1]] == [True, True]
    assert "'a' is there 2 times" in messages["duplicate"]
    assert "data.labeled and in data.val (val), such as 'a'" in messages["overlap"]
    assert not next(finding for finding in report.findings if finding.kind == "duplicate").is_error


def test_absent_classes_are_a_warning(root: Path) -> None:
    archives.mask(root / "masks/a.png", [[0, 0, 0], [3, 3, 3]])
    archives.write(root / "splits/few.txt", "a")
    report = checked(root)
    assert report.ok
    assert kinds(report) == ["no_class"]
    assert "few.txt shows cat, car; what is not shown cannot be learned" in report.findings[0].message
    archives.mask(root / "masks/a.png", 255)
    assert kinds(checked(root)) == ["all_ignore", "no_class"]


def test_few_unlabelled_images(root: Path) -> None:
    report = checked(root, labeled="train")
    assert (report.ok, kinds(report)) == (True, ["few"])
    assert "only 0 unlabelled images beside 6" in report.findings[0].message
    assert not checked(root, labeled="train", unlabeled=None).findings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "/nowhere"}, "data.root is '/nowhere'"),
        ({"labeled": "fwe"}, "data.labeled is 'fwe'.*did you mean 'few'"),
        ({"val": "vall"}, "data.val is 'vall'"),
        ({"unlabeled": "photos"}, "data.unlabeled is 'photos'"),
        ({"hierarchy": {"x": None}}, "'bird' is no leaf"),
    ],
)
def test_what_cannot_be_opened(root: Path, options: dict[str, Any], message: str) -> None:
    report = checked(root, **options)
    errors = [finding for finding in report.findings if finding.is_error]
    assert [error.kind for error in errors] == ["broken"]
    assert re.search(message, errors[0].message)
    assert "1 error" in text(report)


def test_one_broken_list_does_not_hide_the_others(root: Path) -> None:
    archives.mask(root / "masks/v.png", 77)
    report = checked(root, labeled="fwe")
    assert {"broken", "wrong_ids"} <= set(kinds(report))


def test_many_findings_are_cut_in_print_only(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(30)]
    archives.folder(tmp_path, train=names)
    for name in names:
        archives.mask(tmp_path / f"masks/{name}.png", 9)
    report = checked(tmp_path, labeled="train", unlabeled=None)
    assert kinds(report).count("wrong_ids") == 30
    assert text(report).count("stand for no class") == 20
    assert "and 10 more of the kind wrong_ids" in text(report)


def test_masks_of_unlabelled_images_stay_closed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = files.IndexMask.ids
    monkeypatch.setattr(files.IndexMask, "ids", lambda self: read.append(self.path.stem) or real(self))  # type: ignore[func-returns-value]
    (root / "masks/c.png").write_bytes(b"broken")
    assert checked(root).ok
    assert sorted(read) == ["a", "b", "v", "w"]


def test_progress_and_json(root: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    report = check(DataConfig(root=str(root), labeled="few"), None, lambda *step: heard.append(step))
    assert heard[:2] == [("labeled", 1, 2), ("labeled", 2, 2)]
    assert heard[-1] == ("val", 2, 2)
    data = json.loads(json.dumps(report.as_dict()))
    assert data["splits"]["labeled"]["classes"]["bird"] == {"images": 2, "pixels": 16}
    assert data["ok"] is True


def test_coco_with_broken_annotations(tmp_path: Path) -> None:
    archives.coco(tmp_path, {})
    archives.write(tmp_path / "annotations/instances_train2017.json", "{")
    report = check(DataConfig(layout="coco", root=str(tmp_path)))
    assert "instances_train2017.json: cannot be read as JSON" in str(report.findings[0])
    assert [split.name for split in report.splits] == ["unlabeled", "val"]


def test_scenes() -> None:
    report = check(DataConfig(layout="scenes", scenes=ScenesConfig(size=48, train=40, labeled=12, val=2)))
    assert report.ok
    assert [split.images for split in report.splits] == [12, 28, 2]
