"""Each archive's layout: which images are found, and what the ids of its masks mean."""

from __future__ import annotations

import builtins
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image

from logicdiag.data import DataConfig, Dataset, Masked, Photo, open_dataset
from logicdiag.data.layouts import rle
from logicdiag.errors import DataError
from logicdiag.logic.hierarchy import Hierarchy

from . import archives


def opened(layout: str, root: Path, **options: Any) -> Dataset:
    return open_dataset(DataConfig(layout=layout, root=str(root), **options))


def named(data: Dataset, item: Masked) -> list[list[str]]:
    """A mask of blocks of 2 x 2, one class name for each block."""
    mask = item.mask()
    assert mask.dtype == np.uint8
    assert mask.shape == item.image().shape[:2]
    return [["-" if i == 255 else data.hierarchy.leaves[i] for i in row] for row in mask[::2, ::2].tolist()]


def names(items: tuple[Photo, ...]) -> list[str]:
    return [item.name for item in items]


class TestFolder:
    def test_masks_are_indices_of_leaves(self, tmp_path: Path) -> None:
        data = opened("folder", archives.folder(tmp_path))
        assert data.hierarchy.leaves == ("sky", "bird", "cat", "car")
        assert named(data, data.labeled[0]) == [["bird", "cat", "car"], ["sky", "-", "bird"]]
        assert names(data.val) == ["v"]

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    def test_gray_masks_of_8_and_16_bits(self, tmp_path: Path, dtype: Any) -> None:
        archives.folder(tmp_path)
        archives.mask(tmp_path / "masks/a.png", [[0, 1, 2], [3, 255, 3]], dtype=dtype)
        data = opened("folder", tmp_path)
        assert named(data, data.labeled[0]) == [["bird", "cat", "car"], ["sky", "-", "sky"]]

    def test_wrong_ids_are_named(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        archives.mask(tmp_path / "masks/a.png", [[0, 1, 300], [3, 9, 9]], dtype=np.uint16)
        with pytest.raises(DataError, match=r"a\.png.* 9 \(8 pixels\), 300 \(4 pixels\); allowed are 0-3, 255"):
            opened("folder", tmp_path).labeled[0].mask()

    def test_colour_mask_is_refused(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        archives.photo(tmp_path / "masks/a.png")
        with pytest.raises(DataError, match="colours are not indices"):
            opened("folder", tmp_path).labeled[0].mask()

    def test_classes_by_id_several_ignored_and_null(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        archives.write(tmp_path / "dataset.yaml", "classes: {0: null, 1: cat, 3: sky}\nignore: [255, 2]\n")
        data = opened("folder", tmp_path)
        assert data.hierarchy.names == ("cat", "sky")
        assert named(data, data.labeled[0]) == [["-", "cat", "-"], ["sky", "-", "-"]]

    def test_built_in_hierarchy_is_cut_to_the_classes(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        text = "classes: [traffic_light, Traffic Sign, road, sky]\nhierarchy: cityscapes\n"
        archives.write(tmp_path / "dataset.yaml", text)
        data = opened("folder", tmp_path)
        assert data.hierarchy.to_dict() == {
            "road": None,
            "object": {"traffic light": None, "traffic sign": None},
            "sky": None,
        }
        assert named(data, data.labeled[0])[0] == ["traffic light", "traffic sign", "road"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("classes: [bird, animal]\nhierarchy: {animal: [bird, cat]}", "'animal' is a group"),
            ("classes: [brid, cat]\nhierarchy: {animal: [bird, cat]}", "'brid' is no leaf .*did you mean 'bird'"),
            ("classes: [bird]\nhierarchy: {animal: [bird, cat]}", "leaf 'cat' .* is no class"),
            ("classes: [bird, Bird]\nhierarchy: [bird]", "'Bird' is there twice"),
            ("clases: [bird]", "unknown key 'clases'.*did you mean 'classes'"),
            ("classes: bird", "expected a list of names"),
            ("classes: [no, yes]", "class 0 was read as False; put it in quotes"),
            ("classes: [bird, cat]\nignore: 1", "1 is ignored, and it is the class 'cat'"),
            ("classes: [bird, cat]\nignore: x", "ignore is 'x'"),
            ("classes: {-1: bird}", "-1 under classes is no id"),
            ("classes: [null]", "classes has no name"),
            ("- bird", "expected a mapping"),
            ("classes: [", "not readable as YAML in line"),
        ],
    )
    def test_what_dataset_yaml_may_not_say(self, tmp_path: Path, text: str, message: str) -> None:
        archives.folder(tmp_path)
        archives.write(tmp_path / "dataset.yaml", text)
        with pytest.raises(DataError, match=message):
            opened("folder", tmp_path)

    def test_missing_dataset_yaml(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        (tmp_path / "dataset.yaml").rename(tmp_path / "dataset.yml")
        with pytest.raises(DataError, match="no such file.*did you mean 'dataset.yml'"):
            opened("folder", tmp_path)

    def test_without_a_train_list_it_is_what_is_not_held_out(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        (tmp_path / "splits/train.txt").unlink()
        (tmp_path / "masks/b.png").unlink()
        archives.write(tmp_path / "splits/test.txt", "d")
        data = opened("folder", tmp_path, labeled="masked")
        assert names(data.labeled) == ["a", "c"]
        assert names(data.unlabeled) == ["b"]
        assert names(data.split("test")) == ["d"]

    def test_two_files_of_one_name(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        archives.photo(tmp_path / "images/a.png")
        with pytest.raises(DataError, match="have one name, 'a'"):
            opened("folder", tmp_path)

    def test_names_in_folders(self, tmp_path: Path) -> None:
        archives.folder(tmp_path, train=("s1/0", "s2/0"))
        data = opened("folder", tmp_path)
        assert names(data.labeled) == ["s1/0", "s2/0"]
        assert named(data, data.labeled[1])[0] == ["bird", "cat", "car"]
        archives.write(tmp_path / "paths.txt", f"{tmp_path}/images/s2/0.jpg\nimages/s1/0.jpg")
        assert names(opened("folder", tmp_path, labeled="paths.txt").labeled) == ["s2/0", "s1/0"]

    @pytest.mark.parametrize("written", ["s3/0", "0"])
    def test_another_folder_is_another_image(self, tmp_path: Path, written: str) -> None:
        archives.folder(tmp_path, train=("s1/0",))
        archives.write(tmp_path / "mine.txt", written)
        with pytest.raises(DataError, match=f"no image '{written}'"):
            opened("folder", tmp_path, labeled="mine.txt")


class TestVoc:
    def test_rest_is_of_trainaug(self, tmp_path: Path) -> None:
        data = opened("voc2012", archives.voc(tmp_path))
        assert names(data.labeled) == ["2007_1", "2007_2"]
        assert names(data.unlabeled) == ["2008_1", "2008_2"]
        assert named(data, data.labeled[0]) == [["background", "person", "-"], ["cat", "dog", "tvmonitor"]]

    def test_the_list_names_the_mask(self, tmp_path: Path) -> None:
        archives.voc(tmp_path)
        pairs = (
            "JPEGImages/2007_1.jpg SegmentationClassAug/2007_1.png\nJPEGImages/2008_1.jpg SegmentationClass/2008_1.png"
        )
        archives.write(tmp_path / "mine.txt", pairs)
        data = opened("voc2012", tmp_path, labeled="mine.txt")
        assert named(data, data.labeled[0])[0] == ["background", "background", "-"]
        assert named(data, data.labeled[1])[0] == ["background", "background", "-"]  # SBD's; there is no fine one

    def test_devkit_above(self, tmp_path: Path) -> None:
        archives.voc(tmp_path / "VOCdevkit/VOC2012", aug=False)
        data = opened("voc2012", tmp_path)
        assert (len(data.labeled), len(data.unlabeled)) == (2, 0)

    def test_own_archive_of_sbd(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        archives.voc(tmp_path / "VOCdevkit/VOC2012", aug=False)
        sbd = tmp_path / "benchmark_RELEASE/dataset"
        archives.write(sbd / "train.txt", "2008_1\n2007_9\n")
        archives.write(sbd / "val.txt", "2008_2\n")
        (sbd / "cls").mkdir()
        ids = np.zeros((4, 6), np.uint8)
        ids[2:] = 15
        scipy.io.savemat(sbd / "cls/2008_1.mat", {"GTcls": {"Segmentation": ids}})
        archives.write(tmp_path / "mine.txt", "2008_1")
        data = opened("voc2012", tmp_path, labeled=str(tmp_path / "mine.txt"))
        assert names(data.unlabeled) == ["2007_1", "2007_2", "2008_2"]
        assert named(data, data.labeled[0]) == [["background"] * 3, ["person"] * 3]
        real = builtins.__import__

        def without_scipy(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.startswith("scipy"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without_scipy)
        with pytest.raises(DataError, match=r"2008_1\.mat.*needs scipy"):
            data.labeled[0].mask()

    def test_broken_mat(self, tmp_path: Path) -> None:
        archives.voc(tmp_path, aug=False)
        archives.write(tmp_path / "benchmark_RELEASE/dataset/cls/2008_1.mat", "nothing")
        archives.write(tmp_path / "mine.txt", "2008_1")
        with pytest.raises(DataError, match=r"2008_1\.mat: cannot be read as a mask of SBD"):
            opened("voc2012", tmp_path, labeled="mine.txt").labeled[0].mask()


class TestCityscapes:
    EXPECTED = [["road", "car", "-"], ["bicycle", "-", "sky"]]  # noqa: RUF012

    @pytest.mark.parametrize("kind", ["labelIds", "labelTrainIds"])
    def test_both_kinds_of_masks(self, tmp_path: Path, kind: str) -> None:
        data = opened("cityscapes", archives.cityscapes(tmp_path, [kind]))
        assert names(data.labeled)[0] == "jena_000000_000019"
        assert (len(data.labeled), len(data.val)) == (4, 1)
        assert named(data, data.labeled[0]) == self.EXPECTED

    def test_pairs_of_u2pl(self, tmp_path: Path) -> None:
        archives.cityscapes(tmp_path, ["labelIds", "labelTrainIds"])
        stem = "train/ulm/ulm_000001_000019"
        pair = f"leftImg8bit/{stem}_leftImg8bit.png gtFine/{stem}_gtFine_labelTrainIds.png\n"
        archives.write(tmp_path / "u2pl.txt", pair)
        data = opened("cityscapes", tmp_path, labeled="u2pl.txt")
        assert data.labeled[0].labels.path.name == "ulm_000001_000019_gtFine_labelTrainIds.png"  # type: ignore[attr-defined]
        assert named(data, data.labeled[0]) == self.EXPECTED
        assert len(data.unlabeled) == 3


class TestCoco:
    def test_small_objects_stay_on_top_of_crowds(self, tmp_path: Path) -> None:
        dog = {"category_id": 18, "area": 16, "iscrowd": 0, "segmentation": [[0, 0, 3, 0, 3, 3, 0, 3]]}
        light = {"category_id": 10, "area": 4, "iscrowd": 0, "segmentation": [[0, 0, 1, 0, 1, 1, 0, 1]]}
        crowd = {"category_id": 1, "area": 1, "iscrowd": 1, "segmentation": {"counts": [8, 16], "size": [4, 6]}}
        runs = {"category_id": 1, "area": 1, "segmentation": {"counts": compress([18, 2, 4]), "size": [4, 6]}}
        root = archives.coco(tmp_path, {1: [light, dog, crowd], 2: [runs]})
        data = opened("coco", root)
        assert named(data, data.labeled[0]) == [["traffic light", "dog", "person"], ["dog", "dog", "person"]]
        assert named(data, data.labeled[1]) == [["background"] * 3, ["background", "background", "person"]]
        assert named(data, data.labeled[2]) == [["background"] * 3] * 2
        assert data.hierarchy == Hierarchy.load("coco")

    @pytest.mark.parametrize(
        ("polygon", "rows"),
        [
            ([2, 1, 5, 1, 5, 3, 2, 3], ["......", "..###.", "..###.", "......"]),
            ([-9, -9, 99, -9, 99, 1.6, -9, 1.6], ["######", "######", "......", "......"]),
            ([0, 0, 4.5, 0, 0, 4.5], ["####..", "###...", "##....", "#....."]),
            ([7, 0, 9, 0, 9, 4], ["......"] * 4),
        ],
    )
    def test_polygons_cover_centres_of_pixels(self, tmp_path: Path, polygon: list[float], rows: list[str]) -> None:
        thing = {"category_id": 1, "area": 1, "segmentation": [polygon, [1, 1], [0, 0, 1, 1]]}
        mask = opened("coco", archives.coco(tmp_path, {1: [thing]})).labeled[0].mask()
        assert ["".join(".#"[i] for i in row) for row in mask.tolist()] == rows

    def test_annotations_of_others_are_let_go(self, tmp_path: Path) -> None:
        wrong = {"category_id": 1, "area": 1, "segmentation": {"counts": [1], "size": [4, 6]}}
        root = archives.coco(tmp_path, {1: [], 2: [wrong], 3: [{"unreadable": True}]})
        archives.write(root / "mine.txt", "train2017/000000000001.jpg masks/000000000001.png\n000000000002")
        data = opened("coco", root, labeled="mine.txt")
        assert names(data.unlabeled) == ["000000000003"]
        assert not hasattr(data.unlabeled[0], "mask")
        assert data.labeled[0].mask().max() == 0
        with pytest.raises(DataError, match=r"'000000000002' cannot be read: its runs sum to 1 pixels"):
            data.labeled[1].mask()

    def test_masks_of_a_list(self, tmp_path: Path) -> None:
        root = archives.coco(tmp_path, {})
        archives.mask(root / "masks/000000000001.png", [[0, 1, 2], [80, 255, 10]])
        archives.write(root / "mine.txt", "train2017/000000000001.jpg masks/000000000001.png")
        data = opened("coco", root, labeled="mine.txt")
        expected = [["background", "person", "bicycle"], ["toothbrush", "-", "traffic light"]]
        assert named(data, data.labeled[0]) == expected

    def test_file_is_parsed_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root = archives.coco(tmp_path, {})
        read: list[str] = []
        real = Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self.name) or real(self))  # type: ignore[func-returns-value]
        data = opened("coco", root)
        for item in (*data.labeled, *data.val):
            item.mask()
        assert read == ["instances_train2017.json", "instances_val2017.json"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "cannot be read as JSON"),
            ("{}", "not in the format"),
            ('{"categories": [{"id": 1, "name": "persn"}]}', "'persn' is no class of COCO .did you mean 'person'"),
            ('{"categories": [], "images": [], "annotations": []}', "has no image '000000000001'"),
            (None, "there is no such file"),
        ],
    )
    def test_broken_annotations(self, tmp_path: Path, text: str | None, message: str) -> None:
        root = archives.coco(tmp_path, {})
        path = root / "annotations/instances_train2017.json"
        path.unlink() if text is None else archives.write(path, text)
        with pytest.raises(DataError, match=f"instances_train2017.json: .*{message}"):
            opened("coco", root)

    def test_runs_against_a_slow_twin(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(50):
            height, width = rng.integers(1, 70, 2)
            region = rng.random((height, width)) < rng.random()
            runs, value = [0], False
            for pixel in region.T.ravel():
                if pixel != value:
                    runs.append(0)
                    value = bool(pixel)
                runs[-1] += 1
            assert (rle.decode(runs, height, width) == region).all()
            assert (rle.decode(compress(runs), height, width) == region).all()
            assert rle.uncompress(compress(runs).encode()) == runs


class TestCamVid:
    def test_colours_of_cambridge(self, tmp_path: Path) -> None:
        data = opened("camvid", archives.camvid_cambridge(tmp_path))
        assert data.hierarchy == Hierarchy.load("camvid")
        assert names(data.labeled) == ["0001TP_006690", "0006R0_f00930", "0016E5_08190"]
        assert names(data.val) == ["0016E5_07959"]
        assert names(data.split("test")) == ["0001TP_008550", "Seq05VD_f00000"]
        assert named(data, data.labeled[0]) == [["sky", "sky", "sign"], ["road", "car", "-"]]

    def test_unknown_colour(self, tmp_path: Path) -> None:
        archives.camvid_cambridge(tmp_path)
        path = archives.photo(tmp_path / "LabeledApproved_full/0001TP_006690_L.png", colour=(9, 8, 7))
        with pytest.raises(DataError, match=r"colours that stand for no class: 9 8 7 \(24 pixels\)"):
            opened("camvid", tmp_path).labeled[0].mask()
        assert path.exists()

    @pytest.mark.parametrize("line", ["1 2 3\tTreee", "1 2 Tree"])
    def test_broken_colours(self, tmp_path: Path, line: str) -> None:
        archives.camvid_cambridge(tmp_path)
        archives.write(tmp_path / "label_colors.txt", line)
        with pytest.raises(DataError, match=r"label_colors\.txt:1: .*Tree"):
            opened("camvid", tmp_path)

    def test_eleven_classes_of_segnet(self, tmp_path: Path) -> None:
        data = opened("camvid", archives.camvid_segnet(tmp_path))
        assert len(data.hierarchy.leaves) == 11
        assert data.hierarchy.children("human") == ("pedestrian", "bicyclist")
        assert (names(data.labeled), names(data.val)) == (["0001TP_006690", "0001TP_006720"], ["0016E5_07959"])
        assert names(data.split("test")) == ["x"]
        assert named(data, data.labeled[0]) == [["sky", "building", "pole"], ["-", "car", "bicyclist"]]


class TestPets:
    def test_breeds_by_trimap(self, tmp_path: Path) -> None:
        data = opened("oxford_pets", archives.pets(tmp_path), labeled="trainval", val="test")
        assert names(data.val) == ["Egyptian_Mau_7"]
        found = {item.name: named(data, item) for item in (*data.labeled, *data.val)}
        for name, breed in (
            ("american_pit_bull_terrier_12", "american pit bull terrier"),
            ("Egyptian_Mau_7", "Egyptian Mau"),
            ("pug_3", "pug"),
        ):
            assert found[name] == [[breed, breed, "background"], ["-", "background", "background"]]

    def test_rest_is_of_trainval(self, tmp_path: Path) -> None:
        archives.pets(tmp_path)
        archives.write(tmp_path / "mine.txt", "pug_3 1 1 1")
        data = opened("oxford_pets", tmp_path, labeled="mine.txt", val="test")
        assert names(data.unlabeled) == ["Abyssinian_1", "american_pit_bull_terrier_12"]

    def test_unknown_breed(self, tmp_path: Path) -> None:
        archives.pets(tmp_path)
        archives.photo(tmp_path / "images/pugg_1.jpg")
        archives.write(tmp_path / "mine.txt", "pugg_1")
        with pytest.raises(DataError, match="'pugg' is no breed .*did you mean 'pug'"):
            opened("oxford_pets", tmp_path, labeled="mine.txt", val=None)


OPEN = {
    "folder": archives.folder,
    "voc2012": archives.voc,
    "cityscapes": archives.cityscapes,
    "coco": lambda root: archives.coco(root, {}),
    "camvid": archives.camvid_cambridge,
    "oxford_pets": archives.pets,
}
FIRST = {
    "folder": "a",
    "voc2012": "2007_1",
    "cityscapes": "ulm_000000_000019",
    "coco": "000000000001",
    "camvid": "0001TP_006690",
    "oxford_pets": "pug_3",
}
_opened_files: list[str] = []
_listening: list[bool] = []


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _listening and event == "open" and isinstance(args[0], (str, bytes, Path)):
        _opened_files.append(str(args[0]))


@cache
def _install_hook() -> None:
    sys.addaudithook(_hear)  # it cannot be taken away again, so there is one, and it listens only when it is told to


@pytest.mark.parametrize("layout", OPEN)
def test_masks_of_unlabelled_images_are_never_opened(tmp_path: Path, layout: str) -> None:
    """Not even when they are there, for an audit hook that hears of every file the process opens."""
    OPEN[layout](tmp_path)  # type: ignore[operator]
    archives.write(tmp_path / "one.txt", FIRST[layout])
    _install_hook()
    _opened_files.clear()
    _listening.append(True)
    try:
        data = opened(layout, tmp_path, labeled="one.txt", val="test" if layout == "oxford_pets" else "val")
        assert data.unlabeled
        for photo in pickle.loads(pickle.dumps(data.unlabeled)):
            photo.image()
        unlabelled = set(_opened_files)
        data.labeled[0].mask()
    finally:
        _listening.clear()
    masks = ("masks", "Segmentation", "gtFine", "Labeled", "trimaps")
    inside = [Path(path).relative_to(tmp_path).as_posix() for path in unlabelled if str(tmp_path) in path]
    touched = [path for path in inside if any(word in path for word in masks) and not path.startswith("ImageSets")]
    assert not touched
    assert len([path for path in inside if path.endswith((".jpg", ".png"))]) == len(data.unlabeled)
    if layout != "coco":  # its masks are no files
        assert len(set(_opened_files) - unlabelled) == 1  # the hook does hear of masks that are opened
    assert not any(isinstance(photo, Masked) or hasattr(photo, "mask") for photo in data.unlabeled)


class TestImages:
    @pytest.mark.parametrize("mode", ["RGBA", "L", "LA", "P", "CMYK", "1", "I;16"])
    def test_any_mode_becomes_rgb(self, tmp_path: Path, mode: str) -> None:
        archives.folder(tmp_path / "d")
        suffix = "tif" if mode == "CMYK" else "png"
        path = tmp_path / f"photos/x.{suffix}"
        if mode == "I;16":
            path.parent.mkdir()
            Image.fromarray(np.full((4, 6), 0xFF00, np.uint16)).save(path)
        else:
            archives.photo(path, colour=(255, 255, 255), mode=mode)
        image = opened("folder", tmp_path / "d", unlabeled=str(tmp_path / "photos")).unlabeled[0].image()
        assert image.shape == (4, 6, 3)
        assert image.dtype == np.uint8
        assert image.min() >= 254

    @pytest.mark.parametrize("dtype", [np.int32, np.float32])
    def test_numbers_without_a_known_white_are_refused(self, tmp_path: Path, dtype: Any) -> None:
        archives.folder(tmp_path / "d")
        (tmp_path / "photos").mkdir()
        Image.fromarray(np.full((4, 6), 200, dtype)).save(tmp_path / "photos/x.tif")
        (photo,) = opened("folder", tmp_path / "d", unlabeled=str(tmp_path / "photos")).unlabeled
        with pytest.raises(DataError, match=r"photos/x\.tif: .*mode [IF].*expected 8 bits per channel, or 16 bits"):
            photo.image()

    def test_tiff_files_of_16_bits_are_scaled(self, tmp_path: Path) -> None:
        archives.folder(tmp_path / "d")
        (tmp_path / "photos").mkdir()
        Image.fromarray(np.full((4, 6), 0x8000, np.uint16)).save(tmp_path / "photos/x.tif")
        (photo,) = opened("folder", tmp_path / "d", unlabeled=str(tmp_path / "photos")).unlabeled
        assert np.unique(photo.image()).tolist() == [0x80]

    def test_palette_with_transparency(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        image = Image.new("P", (6, 4), 1)
        image.putpalette([0, 0, 0, 10, 20, 30])
        image.save(tmp_path / "images/a.png", transparency=bytes([0, 128]))
        (tmp_path / "images/a.jpg").unlink()
        assert opened("folder", tmp_path).labeled[0].image()[0, 0].tolist() == [10, 20, 30]

    def _turned(self, path: Path, orientation: int) -> None:
        image = Image.new("RGB", (6, 4))
        image.paste((255, 255, 255), (0, 0, 2, 2))
        exif = Image.Exif()
        exif[0x0112] = orientation
        image.save(path, exif=exif, quality=100)

    def test_bare_photos_are_turned_upright(self, tmp_path: Path) -> None:
        archives.folder(tmp_path)
        self._turned(tmp_path / "images/b.jpg", 6)
        archives.write(tmp_path / "splits/train.txt", "a\nb")
        archives.write(tmp_path / "splits/one.txt", "a")
        image = opened("folder", tmp_path, labeled="one").unlabeled[0].image()
        assert image.shape == (6, 4, 3)
        assert image[0, -1].min() > 200

    @pytest.mark.parametrize(("orientation", "tall", "turned"), [(6, True, True), (6, False, False), (3, False, False)])
    def test_labelled_ones_only_if_the_mask_is(
        self, tmp_path: Path, orientation: int, tall: bool, turned: bool
    ) -> None:
        archives.folder(tmp_path)
        self._turned(tmp_path / "images/a.jpg", orientation)
        if tall:
            archives.mask(tmp_path / "masks/a.png", [[0, 1], [2, 3], [0, 0]])
        item = opened("folder", tmp_path).labeled[0]
        assert item.image().shape[:2] == item.mask().shape
        assert item.source.size() == item.mask().shape  # type: ignore[attr-defined]
        assert (item.image()[0, 0].min() > 200) is not turned

    @pytest.mark.parametrize("content", [b"", b"no image", None])
    def test_unreadable(self, tmp_path: Path, content: bytes | None) -> None:
        archives.folder(tmp_path)
        path = archives.photo(tmp_path / "images/a.jpg", 64, 64)
        path.write_bytes(path.read_bytes()[:-200] if content is None else content)
        with pytest.raises(DataError, match=r"images/a\.jpg: cannot be read as an image"):
            opened("folder", tmp_path).labeled[0].image()


def compress(runs: list[int]) -> str:
    """What `rle.uncompress` reads back, as COCO's own code writes it."""
    text = []
    for i, run in enumerate(runs):
        value = run - runs[i - 2] if i > 2 else run
        while True:
            low, value = value & 31, value >> 5
            done = value == (-1 if low & 16 else 0)
            text.append(chr(48 + (low if done else low | 32)))
            if done:
                break
    return "".join(text)
