"""The table of a witness: read, refused, and given to the images it is about."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from logicdiag import Hierarchy
from logicdiag.data.cache import Kept, remembered
from logicdiag.data.check import check
from logicdiag.data.config import DataConfig, ScenesConfig
from logicdiag.data.loader import Loader
from logicdiag.data.open import open_dataset, open_hidden
from logicdiag.data.witness import LEAST, read_witness, rows_of
from logicdiag.errors import DataError

from .archives import folder

H = Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": ["car", "bus"], "sky": None})
SCENES = DataConfig(layout="scenes", scenes=ScenesConfig(size=40, train=9, labeled=4, val=2))
TABLE = "image,tiger,leopard\ntrain_0005,1,0.5\ntrain_0007,0,2\nelsewhere,1,1\n"


def table(tmp_path, text):
    path = tmp_path / "witness.csv"
    path.write_text(text, "utf-8")
    return path


def test_reads(tmp_path):
    text = "image, cat,bird ,car,bus\na,1,0.5,2,2\n\nb/c d,0,3,1e-9,1\n"
    witness = read_witness(table(tmp_path, text), H)
    assert witness.concepts == ("cat", "bird", "car", "bus")
    assert list(witness.heard) == ["a", "b/c d"]
    expected = dict(zip(H.names, [0, np.log(0.5), 0, 0, np.log(2), np.log(2), 0], strict=True))
    assert witness.heard["a"] == pytest.approx([expected[name] for name in H.names])
    other = dict(zip(H.names, witness.heard["b/c d"], strict=True))
    assert other["cat"] == other["car"] == pytest.approx(np.log(LEAST))  # nothing is beyond doubt
    assert witness.record.count == 2
    assert witness.record.fingerprint != read_witness(table(tmp_path, text.replace("3", "4")), H).record.fingerprint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the first line is '', expected image and the names of concepts"),
        ("name,cat,bird\n", "the first line is 'name,cat,bird', expected image and"),
        ("image,cat\na,1\n", "the first line is 'image,cat', expected image and"),
        ("image,cat,brid\n", "there is no concept 'brid' in the hierarchy (did you mean 'bird'?)"),
        ("image,cat,cat\n", "the concept 'cat' has two columns"),
        ("image,cat,bird,car\n", "'car' is alone below vehicle, expected its siblings, too"),
        ("image,cat,bird\na,1\n", "line 2: 2 columns, expected 3 as in the first line"),
        ("image,cat,bird\na,1,2\na,1,2\n", "line 3: the image 'a' stands there twice"),
        ("image,cat,bird\na,1,likely\n", "line 2: a weight is 'likely', expected a number of at least 0"),
        ("image,cat,bird\na,1,-1\n", "line 2: a weight is '-1', expected a number"),
        ("image,cat,bird\na,nan,1\n", "line 2: a weight is 'nan', expected a number"),
        (f"image,cat,bird\n{'a' * 200_000},1,1\n", "the table of a witness is no CSV (field larger than"),
        ("image,cat,bird\na,inf,1\n", "line 2: a weight is 'inf', expected a number"),
    ],
)
def test_refuses(tmp_path, text, said):
    path = table(tmp_path, text)
    with pytest.raises(DataError) as error:
        read_witness(path, H)
    assert said in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_refuses_what_is_no_text(tmp_path):
    path = tmp_path / "witness.csv"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match="the table of a witness cannot be read"):
        read_witness(path, H)


def test_unlabelled_images_come_with_it(tmp_path):
    table(tmp_path, TABLE)
    data = open_dataset(replace(SCENES, witness="witness.csv"), tmp_path)
    assert data.witness == ("tiger", "leopard")
    assert {photo.name for photo in data.unlabeled if photo.heard is not None} == {"train_0005", "train_0007"}
    assert all(item.heard is None for item in (*data.labeled, *data.val))
    assert data.lists["witness"].count == 3
    heard = {photo.name: photo.heard for photo in data.unlabeled}["train_0007"]
    leopard, tiger = (data.hierarchy.index(name) for name in ("leopard", "tiger"))
    assert heard[leopard] == pytest.approx(np.log(2))
    assert heard[tiger] == pytest.approx(np.log(LEAST))
    assert sum(value != 0 for value in heard) == 2
    hidden = open_hidden(replace(SCENES, witness="witness.csv"), tmp_path)
    assert hidden.witness == data.witness
    assert [item.heard for item in hidden.items] == [photo.heard for photo in data.unlabeled]
    alone = open_dataset(SCENES, tmp_path)
    assert alone.witness == ()
    assert "witness" not in alone.lists


def test_a_table_of_other_images_is_refused(tmp_path):
    table(tmp_path, "image,tiger,leopard\nIMG_1,1,1\n")
    with pytest.raises(
        DataError, match=r"none of the 5 unlabelled images is in it, such as 'train_0004'; it has 'IMG_1'"
    ):
        open_dataset(replace(SCENES, witness="witness.csv"), tmp_path)


def test_a_table_that_is_not_there_is_refused(tmp_path):
    table(tmp_path, TABLE)
    says = r"data.witness is 'witnes.csv', and neither .* nor witnes.csv is a file .did you mean 'witness.csv'"
    with pytest.raises(DataError, match=says):
        open_dataset(replace(SCENES, witness="witnes.csv"), tmp_path)


def test_views_come_with_what_is_heard_of_their_image(tmp_path):
    """In the order of the batch, and the same whoever loads them."""
    table(tmp_path, TABLE)
    data = open_dataset(replace(SCENES, witness="witness.csv"), tmp_path)
    by_picture = {photo.image().tobytes(): photo for photo in data.unlabeled}
    options = {"batch": 3, "crop": 40, "scale": (1.0, 1.0), "flip": 0.0, "stream": "unlabeled"}
    found = []
    for workers in (0, 1):
        with Loader(data.unlabeled, workers=workers, **options) as loader:
            found.append(list(islice(loader, 4)))
    for views, again in zip(*found, strict=True):
        pictures = (views.image * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
        photos = [by_picture[picture.tobytes()] for picture in pictures]
        expected = torch.from_numpy(rows_of(photos, len(data.hierarchy)))
        assert torch.equal(views.heard, expected)
        assert torch.equal(again.heard, expected)
    assert any(views.heard.any() for views in found[0])
    with Loader(open_dataset(SCENES).unlabeled, **options) as loader:
        assert next(loader).heard is None


def test_images_in_memory_keep_it(tmp_path):
    root = folder(tmp_path / "data")
    (root / "splits/two.txt").write_text("a\nb\n", "utf-8")
    (root / "witness.csv").write_text("image,bird,cat\nc,1,0.25\nd,0.5,1\n", "utf-8")
    data = open_dataset(DataConfig(root=str(root), labeled="two", witness="witness.csv"))
    kept = remembered(data, True)
    assert [type(photo.source) for photo in kept.unlabeled] == [Kept, Kept]
    assert kept.witness == data.witness == ("bird", "cat")
    assert [photo.heard for photo in kept.unlabeled] == [photo.heard for photo in data.unlabeled]
    assert all(photo.heard is not None for photo in kept.unlabeled)


def test_data_check_finds_what_is_wrong_with_it(tmp_path):
    root = folder(tmp_path / "data")
    (root / "splits/two.txt").write_text("a\nb\n", "utf-8")
    config = DataConfig(root=str(root), labeled="two", witness="witness.csv")
    for text, said in (
        ("image,bird,cat\nc,1,2\n", None),
        ("image,bird,cat\nx,1,2\n", "none of the 2 unlabelled images is in it"),
        ("image,bird,cow\nc,1,2\n", "there is no concept 'cow'"),
    ):
        (root / "witness.csv").write_text(text, "utf-8")
        messages = [finding.message for finding in check(config).findings if "witness.csv" in finding.message]
        assert len(messages) == (said is not None)
        assert said is None or said in messages[0]
