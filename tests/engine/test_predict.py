"""Masks, overlays and probabilities on disk."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import logicdiag as ld
from logicdiag.engine import predict
from logicdiag.engine.predict import blend, find_images, predict_run
from logicdiag.palette import leaf_colours
from tests.engine.stand_ins import TREE, Run


@pytest.fixture
def opened(monkeypatch):
    opened = Run()
    monkeypatch.setitem(sys.modules, "logicdiag.engine.run", SimpleNamespace(open_run=lambda path, overrides: opened))
    return opened


def draw(path: Path, leaves, **options):
    """An image that shows leaves to the stand-in; PNG keeps them, and JPEG nearly so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = (np.asarray(leaves) * 40).astype(np.uint8)
    Image.fromarray(np.stack([shown] * 3, -1)).save(path, **options)
    return path


def leaves_of(size, seed=0):
    return np.random.default_rng(seed).integers(0, len(TREE.leaves), size).astype(np.uint8)


def files(folder: Path):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("size", [(1, 1), (7, 90), (64, 33)])
def test_a_mask_holds_the_leaves_with_their_colours(opened, tmp_path, size):
    leaves = leaves_of(size)
    draw(tmp_path / "a.png", leaves)
    [done] = predict_run("run", [tmp_path / "a.png"], tmp_path / "out", checkpoint="best", probabilities=True)
    with Image.open(done.mask) as mask:
        assert mask.mode == "P"
        assert np.array_equal(np.array(mask), leaves)
        assert np.array_equal(np.array(mask.convert("RGB")), leaf_colours(TREE)[leaves])
    with Image.open(done.overlay) as overlay:
        assert (overlay.format, overlay.size) == ("JPEG", size[::-1])
    with np.load(done.probabilities) as data:
        assert data["names"].tolist() == list(TREE.names)
        assert data["probabilities"].dtype == np.float16
        assert data["probabilities"].shape == (len(TREE), *size)
        chosen = data["probabilities"][list(TREE.leaf_indices)].argmax(0)
    assert np.array_equal(chosen, leaves)
    assert files(tmp_path / "out") == ["classes.json", "masks/a.png", "overlays/a.jpg", "probabilities/a.npz"]


def test_classes_are_written_beside_the_masks(opened, tmp_path):
    draw(tmp_path / "a.png", leaves_of((40, 40)))
    predict_run("run", [tmp_path / "a.png"], tmp_path / "out", overlay=False)
    assert files(tmp_path / "out") == ["classes.json", "masks/a.png"]
    classes = json.loads((tmp_path / "out/classes.json").read_text())["classes"]
    assert [(c["index"], c["name"]) for c in classes] == list(enumerate(TREE.leaves))
    assert [c["colour"] for c in classes] == leaf_colours(TREE).tolist()


def test_folders_keep_their_structure_and_results_are_not_inputs(opened, tmp_path):
    for name in ("a.png", "one/a.png", "two/b.JPG", "two/c.tiff"):
        draw(tmp_path / name, leaves_of((40, 50)))
    (tmp_path / "notes.txt").write_text("no image")
    seen = []
    for _ in range(2):  # the second time, `out` is full of masks
        found = predict_run("run", [tmp_path], tmp_path / "out", progress=lambda *now: seen.append(now))
        assert [p.image.relative_to(tmp_path).as_posix() for p in found] == [
            "a.png",
            "one/a.png",
            "two/b.JPG",
            "two/c.tiff",
        ]
    assert seen[:4] == [("prediction", k, 4) for k in range(1, 5)]
    masks = files(tmp_path / "out/masks")
    assert masks == ["a.png", "one/a.png", "two/b.png", "two/c.png"]


def test_globs(tmp_path, monkeypatch):
    for name in ("x/1/a.png", "x/2/a.png", "x/2/b.png"):
        draw(tmp_path / name, leaves_of((4, 4)))
    (tmp_path / "x/2/a.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    assert [s.name for s in find_images(["x/*/a.*"])] == ["1/a", "2/a"]
    assert [s.name for s in find_images(["x/**/*.png"])] == ["1/a", "2/a", "2/b"]
    assert [s.name for s in find_images(["x/2/[ab].png", "x/2/a.png"])] == ["a", "b"]  # each file once
    draw(tmp_path / "y[1].png", leaves_of((4, 4)))
    assert [s.name for s in find_images(["y[1].png"])] == ["y[1]"]  # a file of that very name


def test_two_images_of_one_name_are_refused(opened, tmp_path):
    first, second = draw(tmp_path / "1/a.png", leaves_of((4, 4))), draw(tmp_path / "2/a.jpg", leaves_of((4, 4)))
    with pytest.raises(ld.LogicDiagError, match=r"1/a.png and .*2/a.jpg would both be written to .*masks/a.png"):
        predict_run("run", [first, second], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_image_is_never_overwritten(opened, tmp_path):
    image = draw(tmp_path / "masks/a.png", leaves_of((4, 4)))
    before = image.read_bytes()
    with pytest.raises(ld.LogicDiagError, match=r"masks/a.png: the image would be overwritten"):
        predict_run("run", [image], tmp_path)
    assert image.read_bytes() == before


def test_a_turned_photo_is_turned_upright(opened, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise by a quarter
    leaves = leaves_of((40, 60))
    draw(tmp_path / "a.png", leaves, exif=exif)
    [done] = predict_run("run", [tmp_path / "a.png"], tmp_path / "out", checkpoint="best")
    with Image.open(done.mask) as mask:
        assert np.array_equal(np.array(mask), np.rot90(leaves, -1))


@pytest.mark.parametrize("head", [0, 300])
def test_unreadable_images_are_named(opened, tmp_path, head):
    """Nonsense, and a file cut off in the middle: the first is found before anything is written at all."""
    good = draw(tmp_path / "in/a.png", leaves_of((64, 64)))
    bad = tmp_path / "in/b.png"
    bad.write_bytes(good.read_bytes()[:head] or b"no image")
    with pytest.raises(ld.LogicDiagError, match=r"in/b.png: cannot be read as an image"):
        predict_run("run", [tmp_path / "in"], tmp_path / "out")
    assert not (tmp_path / "out/masks/b.png").exists()
    assert (tmp_path / "out").exists() == (head > 0)


def test_what_is_not_there_is_named(tmp_path, monkeypatch):
    draw(tmp_path / "photo.png", leaves_of((4, 4)))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    for given, message in [
        ("phto.png", r"phto.png: there is no such file or folder \(did you mean 'photo.png'\?\)"),
        ("empty", "empty: there is no image in the folder"),
        ("*.jpg", r"\*.jpg: no image matches"),
    ]:
        with pytest.raises(ld.LogicDiagError, match=message):
            find_images([given])
    with pytest.raises(ld.LogicDiagError, match="no image to predict"):
        find_images([])


def test_other_options_that_make_no_sense(opened, tmp_path):
    image = draw(tmp_path / "a.png", leaves_of((4, 4)))
    with pytest.raises(ld.LogicDiagError, match="checkpoint is 'both', expected one of last, best"):
        predict_run("run", [image], tmp_path / "out", checkpoint="both")
    with pytest.raises(ld.LogicDiagError, match=r"a.png: is a file, expected a folder"):
        predict_run("run", [image], image)
    with pytest.raises(ld.LogicDiagError, match="empty name"):
        predict_run("run", [image], "")


def test_a_folder_of_other_classes_is_refused(opened, tmp_path):
    image = draw(tmp_path / "a.png", leaves_of((4, 4)))
    predict_run("run", [image], tmp_path / "out")
    before = files(tmp_path / "out")
    opened.hierarchy, opened.ids = ld.Hierarchy.from_dict(["a", "b", "c"]), (0, 1, 2)
    with pytest.raises(ld.LogicDiagError, match="holds predictions of other classes"):
        predict_run("run", [image], tmp_path / "out")
    (tmp_path / "out/classes.json").write_text("{}")
    with pytest.raises(ld.LogicDiagError, match="is not of an earlier prediction"):
        predict_run("run", [image], tmp_path / "out")
    assert files(tmp_path / "out") == before


def test_files_of_an_image_are_written_together(opened, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(predict.np, "savez", full)
    image = draw(tmp_path / "a.png", leaves_of((4, 4)))
    with pytest.raises(ld.LogicDiagError, match=r"masks/a.png: cannot be written: No space left"):
        predict_run("run", [image], tmp_path / "out", probabilities=True)
    assert files(tmp_path / "out") == ["classes.json"]


def test_an_overlay_mixes_and_draws_borders():
    picture = np.full((4, 6, 3), 100, np.uint8)
    leaf = np.zeros((4, 6), np.uint8)
    leaf[:, 3:] = 1
    colours = np.array([[0, 0, 0], [200, 100, 0]], np.uint8)
    mixed = blend(picture, leaf, colours)
    assert mixed[0, 0].tolist() == [45, 45, 45]
    assert mixed[0, 5].tolist() == [155, 100, 45]
    assert (mixed[:, 3] > 180).all()
    assert (mixed[:, 2] == 45).all()


def test_masks_have_the_ids_of_the_data_set(opened, tmp_path):
    image = draw(tmp_path / "a.png", leaves_of((4, 4)))
    predict_run("run", [image], tmp_path / "plain")
    opened.ids = tuple(10 * (index + 1) for index in range(len(opened.hierarchy.leaves)))
    predict_run("run", [image], tmp_path / "ids")
    plain, ids = (np.asarray(Image.open(tmp_path / name / "masks/a.png")) for name in ("plain", "ids"))
    assert np.array_equal(ids, 10 * (plain + 1))
    entries = json.loads((tmp_path / "ids/classes.json").read_text())["classes"]
    assert [(e["index"], e["name"]) for e in entries] == list(zip(opened.ids, opened.hierarchy.leaves, strict=True))
    colours = [np.asarray(Image.open(tmp_path / name / "masks/a.png").convert("RGB")) for name in ("plain", "ids")]
    assert np.array_equal(*colours)
