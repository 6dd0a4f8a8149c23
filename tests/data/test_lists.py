"""Lists of images in the formats that are in use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logicdiag.data import lists
from logicdiag.data.lists import Entry, fingerprint, known_name, parse_list, read_list

VOC = ["2007_000063", "2011_003276"]
STEM = "train/ulm/ulm_000000_000019"


@pytest.mark.parametrize(
    "text",
    [
        "2007_000063\n2011_003276\n",  # PseudoSeg, VOC
        "2007_000063\r\n2011_003276",  # CRLF, no final newline
        "# a list\n\n2011_003276\n  2007_000063   # the first\n",
        "JPEGImages/2007_000063.jpg SegmentationClass/2007_000063.png\n"
        "JPEGImages/2011_003276.jpg SegmentationClass/2011_003276.png",  # U2PL, UniMatch
        "JPEGImages/2007_000063.jpg\tSegmentationClass/2007_000063.png\n"
        "JPEGImages/2011_003276.jpg\tSegmentationClass/2011_003276.png",  # CPS
        "/SegNet/2011_003276.png /SegNet/annot/2011_003276.png\n/SegNet/2007_000063.png /SegNet/annot/2007_000063.png",
        "\ufeffJPEGImages\\2007_000063.JPG\nJPEGImages\\2011_003276.JPG",
    ],
)
def test_one_list_in_many_formats(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.txt").write_bytes(text.encode())
    entries = read_list(tmp_path / "list.txt")
    assert sorted(entry.bare for entry in entries) == VOC
    assert fingerprint(entry.image for entry in entries) == fingerprint(VOC)
    assert all(entry.mask is None or entry.mask.endswith(".png") for entry in entries)
    assert all((entry.mask is not None) == ("annot" in text or "Segm" in text) for entry in entries)


def test_pairs_of_cityscapes() -> None:
    (entry,) = parse_list(f"leftImg8bit/{STEM}_leftImg8bit.png gtFine/{STEM}_gtFine_labelTrainIds.png")
    assert (entry.bare, entry.mask) == ("ulm_000000_000019", f"gtFine/{STEM}_gtFine_labelTrainIds.png")


def test_names_with_spaces_dots_and_hashes() -> None:
    text = "my photo 1\nv1.2\nIMG#3\nmy photo.jpg\nmy photo.jpg my mask.png"
    images = [entry.image for entry in parse_list(text)]
    assert images[:4] == ["my photo 1", "v1.2", "IMG#3", "my photo.jpg"]
    assert [Entry(image).bare for image in images[:4]] == ["my photo 1", "v1.2", "IMG#3", "my photo"]


def test_columns_of_oxford_pets() -> None:
    assert parse_list("#Image CLASS-ID\nAbyssinian_1 1 1 1", columns=True) == [Entry("Abyssinian_1")]


def test_numbers_and_hashes_are_parts_of_names() -> None:
    text = "photo #3.jpg\ntrip 2021 05 12\n#all\n a b # c #3\nx #\t y"
    assert [entry.image for entry in parse_list(text)] == ["photo #3.jpg", "trip 2021 05 12", "a b", "x"]


@given(st.lists(st.text("abc_0123", min_size=1), min_size=1, unique=True), st.randoms())
def test_fingerprint_is_of_the_set(names: list[str], random: object) -> None:
    shuffled = names.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fingerprint(shuffled) == fingerprint(names) == fingerprint([*names, names[0]])
    assert fingerprint(f"images/{name}.png" for name in names) == fingerprint(names)
    assert fingerprint(names[1:]) != fingerprint(names)
    assert fingerprint([*names, "z"]) != fingerprint(names)


def test_names_are_kept_apart() -> None:
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])


def test_known_fingerprints_are_whole() -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in lists.KNOWN)
    assert len(set(lists.KNOWN.values())) == len(lists.KNOWN)


def test_known_lists_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "KNOWN", {fingerprint(VOC): "two of VOC"})
    assert known_name(fingerprint(reversed(VOC))) == "two of VOC"
    assert known_name(fingerprint(VOC[:1])) is None
