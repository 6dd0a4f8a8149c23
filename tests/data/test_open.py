"""Which images a configuration means, and what it is told when it means none."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logicdiag.data import DataConfig, Dataset, ListRecord, Masked, Photo, ScenesConfig, open_dataset
from logicdiag.data.lists import fingerprint
from logicdiag.data.open import open_split
from logicdiag.errors import DataError, OptionError

from . import archives


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archives.folder(tmp_path / "data")
    archives.write(tmp_path / "data/splits/labeled_2.txt", "a\nc\n")
    return tmp_path / "data"


def opened(root: Path, base: Path | None = None, **options: Any) -> Dataset:
    return open_dataset(DataConfig(root=str(root), **options), base)


def names(items: tuple[Photo, ...]) -> list[str]:
    return [item.name for item in items]


class TestLabelled:
    @pytest.mark.parametrize("value", ["labeled_2", "splits/labeled_2.txt", "lists/mine.txt", "absolute"])
    def test_split_or_path(self, root: Path, value: str) -> None:
        """A path is taken from the data set, from the configuration's folder, or as it is."""
        mine = archives.write(root.parent / "config/lists/mine.txt", "a\nc")
        data = opened(root, root.parent / "config", labeled=str(mine) if value == "absolute" else value)
        assert names(data.labeled) == ["a", "c"]
        assert names(data.unlabeled) == ["b", "d"]
        assert data.lists["labeled"].fingerprint == fingerprint(["c", "a"])
        assert data.lists["labeled"].count == 2
        assert data.lists["labeled"].source.endswith(".txt")
        assert data.lists["labeled"].known is None

    def test_the_order_of_a_list_is_on_record(self, root: Path) -> None:
        """And so are folders; the fingerprint is of the bare names alone."""
        records = []
        for text in ("a\nc", "images/a.jpg\nc.jpg", "c\na", "a\nx/c"):
            archives.write(root / "splits/labeled_2.txt", text)
            if "x/" in text:
                for kind, suffix in (("images", ".jpg"), ("masks", ".png")):
                    (root / kind / "x").mkdir()
                    (root / kind / f"c{suffix}").rename(root / kind / f"x/c{suffix}")
            records.append(opened(root, labeled="labeled_2", unlabeled=None).lists["labeled"])
        assert len({record.fingerprint for record in records}) == 1
        assert records[0].order == records[1].order
        assert len({record.order for record in records}) == 3
        assert ListRecord("a list", 1, "0" * 64).order == ""

    def test_root_relative_to_the_configuration_then_to_here(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert names(opened(Path("data"), root.parent).val) == ["v"]
        monkeypatch.chdir(root.parent)
        assert names(opened(Path("data"), Path("elsewhere")).val) == ["v"]
        monkeypatch.setenv("MY_DATA", str(root))
        assert names(opened(Path("$MY_DATA")).val) == ["v"]

    def test_items_can_be_sent_to_workers(self, root: Path) -> None:
        item = opened(root).labeled[0]
        again = pickle.loads(pickle.dumps(item))
        assert np.array_equal(again.mask(), item.mask())
        assert np.array_equal(again.image(), item.image())

    def test_names_with_numbers_and_hashes(self, root: Path) -> None:
        for name in ("photo #3", "trip 2021 05 12"):
            archives.photo(root / f"images/{name}.jpg")
            archives.mask(root / f"masks/{name}.png", 0)
        mine = archives.write(root / "splits/mine.txt", "photo #3.jpg\ntrip 2021 05 12 # in May")
        for value in ("mine", str(mine)):
            assert names(opened(root, labeled=value).labeled) == ["photo #3", "trip 2021 05 12"]
        assert names(opened(root, unlabeled=str(mine)).unlabeled) == ["photo #3", "trip 2021 05 12"]

    def test_duplicates_count_once(self, root: Path) -> None:
        archives.write(root / "splits/twice.txt", "a\na\nimages/a.jpg")
        assert names(opened(root, labeled="twice").labeled) == ["a"]

    def test_val_may_be_none_and_other_splits_are_read(self, root: Path) -> None:
        data = opened(root, val=None)
        assert data.val == ()
        assert names(data.split("val")) == ["v"]
        assert names(data.split("labeled_2")) == ["a", "c"]
        archives.write(root / "splits/test.txt", "d")
        data = opened(root, labeled="labeled_2", unlabeled=None, val="test")
        assert (names(data.val), names(data.split("val"))) == (["d"], ["v"])
        with pytest.raises(DataError, match="the split is 'vall'.*did you mean 'val'"):
            data.split("vall")


class TestOneSplit:
    def test_nothing_else_is_looked_for(self, root: Path) -> None:
        config = DataConfig(root=str(root), labeled="nowhere", unlabeled="nowhere")
        val, other = open_split(config), open_split(config, split="labeled_2")
        assert (names(val.items), names(other.items)) == (["v"], ["a", "c"])
        assert val.hierarchy == other.hierarchy == opened(root).hierarchy
        assert val.record == opened(root).lists["val"]
        assert other.record == opened(root, labeled="labeled_2").lists["labeled"]

    def test_without_a_validation_list(self, root: Path) -> None:
        config = DataConfig(root=str(root), val=None)
        assert open_split(config).items == ()
        assert names(open_split(config, split="val").items) == ["v"]
        with pytest.raises(DataError, match=r"data\.val is 'vall'.*did you mean 'val'"):
            open_split(DataConfig(root=str(root), val="vall"))

    def test_of_scenes(self) -> None:
        config = DataConfig(layout="scenes", scenes=TestScenes.CONFIG)
        data = open_dataset(config)
        assert open_split(config).record == open_split(config, split="val").record == data.lists["val"]
        assert len(open_split(config, split="train").items) == 10


class TestUnlabelled:
    @pytest.fixture
    def photos(self, root: Path) -> Path:
        for name in ("p.jpg", "deep/q.PNG", ".hidden.jpg"):
            archives.photo(root.parent / "photos" / name)
        archives.write(root.parent / "photos/notes.txt", "no image")
        return root.parent / "photos"

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("rest", ["b", "d"]),
            (None, []),
            ("train", ["a", "b", "c", "d"]),
            ("photos", ["deep/q", "photos/p"]),
            ("photos/*.jpg", ["photos/p"]),
            ("photos/**/*", ["deep/q", "photos/p"]),
            ("photos/p.jpg", ["photos/p"]),
            (["rest", "photos", "photos/*.jpg"], ["b", "d", "deep/q", "photos/p"]),
            ("list.txt", ["b", "photos/p", "deep/q"]),
        ],
    )
    def test_from_anywhere(self, root: Path, photos: Path, value: Any, expected: list[str]) -> None:
        archives.write(root.parent / "list.txt", "b\nphotos/p.jpg\n" + str(photos / "deep/q.PNG"))
        data = opened(root, root.parent, labeled="labeled_2", unlabeled=value)
        assert names(data.unlabeled) == expected
        assert all(type(photo) is Photo for photo in data.unlabeled)
        assert all(photo.image().shape == (4, 6, 3) for photo in data.unlabeled)

    def test_a_glob_in_a_folder_whose_name_looks_like_one(self, tmp_path: Path) -> None:
        root = archives.folder(tmp_path / "data[1]")
        archives.photo(tmp_path / "data[1]/more/x.jpg")
        assert names(opened(root, unlabeled="more/*.jpg").unlabeled) == ["more/x"]

    def test_masks_are_no_photos(self, root: Path) -> None:
        data = opened(root, unlabeled=".", val=None)
        assert len(data.unlabeled) == 5
        assert all(Path(photo.where).parent.name == "images" for photo in data.unlabeled)
        archives.write(root / "l.txt", "masks/a.png")
        assert opened(root, unlabeled="l.txt").unlabeled[0].where.endswith("images/a.jpg")
        with pytest.raises(DataError, match="these are masks"):
            opened(root, unlabeled="masks")
        with pytest.raises(DataError, match="these are masks"):
            opened(root, unlabeled="masks/*.png")

    @pytest.mark.parametrize("stored", ["files", "links", "linked folder"])
    def test_nor_are_links_to_masks(self, root: Path, stored: str) -> None:
        """Also where the mask folder, or each mask, is itself a link to where the files are kept."""
        store = root.parent / "store"
        if stored == "linked folder":
            (root / "masks").rename(store)
            (root / "masks").symlink_to(store)
        elif stored == "links":
            store.mkdir()
            for path in sorted((root / "masks").iterdir()):
                path.rename(store / path.name)
                path.symlink_to(store / path.name)
        outside = root.parent / "outside"
        outside.mkdir()
        (outside / "deep").symlink_to(root / "masks")
        archives.photo(root.parent / "real.jpg")
        if stored != "links":
            (outside / "one.png").symlink_to(root / "masks/a.png")
        for value in (str(outside), str(outside / "deep"), str(outside / "**/*.png")):
            with pytest.raises(DataError, match="these are masks"):
                opened(root, unlabeled=value)
        (outside / "photo.jpg").symlink_to(root.parent / "real.jpg")
        assert names(opened(root, unlabeled=str(outside)).unlabeled) == ["outside/photo"]

    def test_pairs_of_a_list_lead_to_images_alone(self, root: Path) -> None:
        archives.write(root / "pairs.txt", "images/b.jpg masks/nowhere.png\nimages/d.jpg masks/d.png")
        assert names(opened(root, labeled="labeled_2", unlabeled="pairs.txt").unlabeled) == ["b", "d"]


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"root": ""}, "data.root is empty"),
            ({"root": "dato"}, "'dato', and neither .*/dato nor dato is a folder .did you mean 'data'"),
            ({"labeled": "labelled_2"}, "data.labeled is 'labelled_2'.*splits: .*did you mean 'labeled_2'"),
            ({"val": "tests"}, "data.val is 'tests'"),
            ({"labeled": "x.txt"}, r"x\.txt: there is no image 'seven' in .*images$"),
            ({"labeled": "near.txt"}, r"near\.txt: there is no image 'vv' in .*images .did you mean 'v'"),
            ({"labeled": "empty.txt"}, r"empty\.txt: the list is empty"),
            ({"labeled": "binary.txt"}, r"binary\.txt: cannot be read as a list of images: it is not UTF-8 text"),
            ({"unlabeled": "fotos"}, "data.unlabeled is 'fotos'"),
            ({"unlabeled": "nothing/*.jpg"}, "data.unlabeled is 'nothing/"),
            ({"unlabeled": "splits"}, "there is no image in this folder"),
            ({"unlabeled": "x.txt"}, "no image 'seven'"),
            ({"hierarchy": "voc2011"}, "did you mean 'voc2012'"),
        ],
    )
    def test_are_told_in_a_sentence(self, root: Path, options: dict[str, Any], message: str) -> None:
        archives.write(root / "x.txt", "seven")
        archives.write(root / "near.txt", "vv")
        archives.write(root / "empty.txt", "# nothing\n\n")
        (root / "binary.txt").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=message):
            open_dataset(DataConfig(**{"root": "data", **options}), root.parent)

    def test_missing_mask(self, root: Path) -> None:
        (root / "masks/a.png").rename(root / "masks/a_.png")
        with pytest.raises(DataError, match=r"masks/a\.png: there is no such file.*did you mean 'a_\.png'"):
            opened(root)

    def test_unknown_layout_and_kind(self, root: Path) -> None:
        with pytest.raises(OptionError, match="did you mean 'voc2012'"):
            opened(root, layout="voc2021")
        with pytest.raises(OptionError, match="data.hierarchy_kind"):
            opened(root, hierarchy_kind="randon")
        with pytest.raises(DataError, match="not in the layout voc2012; expected JPEGImages/"):
            opened(root, layout="voc2012")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"labeled": "all.txt"}, "an image is both in data.labeled and in data.val .*'v'"),
            ({"unlabeled": "images"}, "an image is both in data.unlabeled and in data.val .*'v'"),
            ({"val": "train"}, "4 images are both in data.labeled"),
        ],
    )
    def test_evaluation_images_in_training(self, root: Path, options: dict[str, Any], message: str) -> None:
        archives.write(root / "all.txt", "a\nv")
        with pytest.raises(DataError, match=message):
            opened(root, **options)


class TestHierarchy:
    def test_of_the_configuration(self, root: Path) -> None:
        tree = {"moving": {"animal": ["cat", "bird"], "car": None}, "sky": None}
        data = opened(root, hierarchy=tree)
        assert data.hierarchy.leaves == ("cat", "bird", "car", "sky")
        assert data.labeled[0].mask()[::2, ::2].tolist() == [[1, 0, 2], [3, 255, 1]]
        archives.write(root.parent / "tree.yaml", "living: [bird, cat, dog]\ncar:\nsky:\n")
        data = opened(root, root.parent, hierarchy="tree.yaml")
        assert data.hierarchy.names == ("living", "bird", "cat", "car", "sky")

    def test_random_keeps_the_shape_and_what_masks_show(self, root: Path) -> None:
        official = opened(root)
        orders = set()
        for seed in range(8):
            data = opened(root, hierarchy_kind="random", hierarchy_seed=seed)
            assert data.hierarchy.parents == official.hierarchy.parents
            assert sorted(data.hierarchy.names) == sorted(official.hierarchy.names)
            assert _shown(data) == _shown(official)
            orders.add(data.hierarchy.leaves)
        assert len(orders) > 2

    def test_none_has_no_groups(self, root: Path) -> None:
        data = opened(root, hierarchy_kind="none")
        assert data.hierarchy.names == data.hierarchy.leaves == opened(root).hierarchy.leaves
        assert _shown(data) == _shown(opened(root))


class TestScenes:
    CONFIG = ScenesConfig(size=48, train=10, labeled=4, val=3)

    def test_counts_and_types(self) -> None:
        data = open_dataset(DataConfig(layout="scenes", scenes=self.CONFIG))
        assert (len(data.labeled), len(data.unlabeled), len(data.val)) == (4, 6, 3)
        assert all(type(photo) is Photo for photo in data.unlabeled)
        assert all(isinstance(item, Masked) for item in data.labeled)
        assert len({record.fingerprint for record in data.lists.values()}) == 3
        assert len(data.split("train")) == 10
        with pytest.raises(OptionError, match="the split"):
            data.split("test")

    def test_none_and_random_show_the_same(self) -> None:
        shown = [
            _shown(open_dataset(DataConfig(layout="scenes", scenes=self.CONFIG, hierarchy_kind=kind)))
            for kind in ("official", "random", "none")
        ]
        assert shown[0] == shown[1] == shown[2]

    def test_mistakes(self) -> None:
        with pytest.raises(DataError, match="scenes are generated"):
            open_dataset(DataConfig(layout="scenes", scenes=self.CONFIG, unlabeled="photos"))
        with pytest.raises(DataError, match="scenes have their own"):
            open_dataset(DataConfig(layout="scenes", scenes=self.CONFIG, hierarchy="camvid"))
        data = open_dataset(DataConfig(layout="scenes", scenes=self.CONFIG, unlabeled=None, val=None))
        assert (data.unlabeled, data.val) == ((), ())


def _shown(data: Dataset) -> list[list[str]]:
    """The classes of the first labelled mask."""
    return [["-" if i == 255 else data.hierarchy.leaves[i] for i in row] for row in data.labeled[0].mask().tolist()]
