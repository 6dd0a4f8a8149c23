"""The table of a witness: scores, trust and weights by hand, and the command that makes it."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from logicdiag import Hierarchy
from logicdiag.cli import main
from logicdiag.data.dataset import Dataset, Masked, Photo
from logicdiag.engine import asking
from logicdiag.engine import witness as module
from logicdiag.engine.classes import Siblings
from logicdiag.engine.witness import (
    FACTORS,
    Trust,
    WitnessTable,
    calibrate,
    concept_scores,
    make_witness,
    pixels_of,
    weigh,
)
from logicdiag.models.torchvision_shim import import_timm

from .small import config, folder_dataset, on_disk
from .stand_ins import Bright

ENCODER = "mobilenetv3_small_050"
PETS = Siblings("pet", ("cat", "dog"))


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_concept_scores_the_mean_of_its_classes():
    logits = np.array([[1.0, 2.0, 3.0, -1.0], [0.0, 0.0, 0.0, 5.0]], np.float32)
    found, other = concept_scores(logits, {"cat": (3,), "dog": (0, 2), "pet": (0, 1, 2, 3)})
    mean = [math.exp(-1), (math.e + math.exp(3)) / 2, (math.exp(-1) + math.e + math.exp(2) + math.exp(3)) / 4]
    assert found == pytest.approx([math.log(value) for value in mean])
    assert other == pytest.approx([5, 0, math.log((3 + math.exp(5)) / 4)])


def test_pixels_of_leaves_and_inner_nodes():
    h = Hierarchy.from_dict({"pet": ["cat", "dog"], "sky": None})
    item = Masked("x", lambda: None, lambda: np.array([[0, 0, 1], [2, 255, 255]], np.uint8))
    assert pixels_of(item, ["pet", "cat", "dog", "sky"], h) == [3, 2, 1, 1]


def test_the_factor_is_the_likeliest_one():
    """Six right and one wrong by a margin of 1, and one more: t = log (6.5 / 1.5) = 1.47 fits best, 1.4 is nearest."""
    scores = np.array([[1.0, 0], [0, 1], [1, 0], [1, 0], [1, 0], [0, 1], [1, 0], [5, 0]])
    pixels = np.array([[9, 2], [0, 1], [3, 0], [2, 1], [7, 0], [0, 8], [0, 4], [0, 0]])  # the last one shows neither
    assert calibrate(PETS, scores, pixels) == Trust(PETS, 1.4, 7, 6)
    assert calibrate(PETS, scores / 4, pixels).factor == 5.6

    def likelihood(t):
        """Six are right and one is wrong, and one more is either."""
        right, wrong = (math.log(1 / (1 + math.exp(sign * t / 3))) for sign in (-1, 1))
        return 6 * right + wrong + (right + wrong) / 2

    assert calibrate(PETS, scores / 3, pixels).factor == max(FACTORS, key=likelihood) == 4.0


@pytest.mark.parametrize(
    ("scores", "pixels", "trust"),
    [
        ([[1.0, 0.0]], [[0, 0]], Trust(PETS, 1.0, 0, 0)),
        ([[1.0, 0.0]], [[5, 0]], Trust(PETS, 1.0, 1, 1)),
        ([[1.0, 0.0]], [[0, 5]], Trust(PETS, FACTORS[0], 1, 0)),
        ([[2.0, 2.0]], [[5, 0]], Trust(PETS, FACTORS[0], 1, 1)),
    ],
)
def test_trust_at_its_ends(scores, pixels, trust):
    assert calibrate(PETS, np.array(scores), np.array(pixels)) == trust


def test_trust_in_words():
    assert str(Trust(PETS, 1.0, 0, 0)) == "pet (cat, dog): t = 1, since no labelled image shows any of them"
    assert str(Trust(PETS, 2.8, 4, 3)) == "pet (cat, dog): t = 2.8; right about 3 of 4 labelled images"
    top = Trust(Siblings(None, ("pet", "sky")), 8.0, 1, 1)
    assert str(top) == "the top level (pet, sky): t = 8, the most that is tried; right about 1 of 1 labelled image"


def test_weights_beside_the_likeliest_sibling():
    h = Hierarchy.from_dict({"pet": ["cat", "dog"], "seat": ["chair", "sofa", "stool"]})
    logits = np.array([[0.25, 0.0, 0.0, 0.0], [0.5, 0.0, 1.0, 3.0], [-1.0, 1.0, 2.0, 2.0]], np.float32)
    mask = np.zeros((2, 2), np.uint8)  # a cat, so that pets are trusted by 4, and nothing is known of seats
    labeled = (Masked("l", lambda: None, lambda: mask),)
    unlabeled = tuple(Photo(name, lambda: None) for name in "ab")
    table = weigh(
        Dataset("mine", h, labeled, unlabeled, (), {}, lambda name: ()),
        {"cat": (0,), "dog": (1,), "chair": (2,), "sofa": (3,)},
        logits,
    )
    e = math.exp
    assert table.concepts == ("cat", "dog", "chair", "sofa")
    assert table.weights == pytest.approx(np.array([[1, e(-2), e(-2), 1], [e(-8), 1, 1, 1]]))
    assert [(trust.factor, trust.images) for trust in table.trust] == [(4.0, 1), (1.0, 0)]


def test_the_file(tmp_path):
    out = tmp_path / "new" / "w.csv"
    table = WitnessTable(("cat", "dog"), ("a", "b, c"), np.array([[1, 0.123456], [3.00004e-7, 1]]), ())
    table.write(out)
    assert out.read_bytes() == b'image,cat,dog\na,1,0.1235\n"b, c",3e-07,1\n'
    assert list(out.parent.iterdir()) == [out]


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A classifier of three classes that knows nothing, in a file."""
    path = tmp_path_factory.mktemp("weights") / "w.pth"
    torch.manual_seed(0)
    torch.save(import_timm().create_model(ENCODER, num_classes=3).state_dict(), path)
    return path


@pytest.fixture
def my(tmp_path, weights):
    """my.yaml on a small data set; classes.yaml beside it."""
    root = folder_dataset(tmp_path / "data")
    model = {"encoder": ENCODER, "weights": str(weights)}
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump({"data": on_disk(root), "model": model, "train": {"device": "cpu"}}))
    (tmp_path / "classes.yaml").write_text("bird: 2\ncat: 0-1\n")
    return path


def arguments(my, *more, classes="classes.yaml", out="w.csv"):
    return ["witness", str(my), str(my.parent / classes), "--out", str(my.parent / out), "--size", "32", *more]


def test_the_command(my, tmp_path, capsys):
    """One line for each unlabelled image, in order; the same again, byte for byte."""
    assert main(arguments(my)) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path / 'w.csv'}: 4 unlabelled images\nanimal (cat, bird): t = ")
    assert out.endswith("of 3 labelled images\n")
    header, *rows = [line.split(",") for line in (tmp_path / "w.csv").read_text().splitlines()]
    assert header == ["image", "cat", "bird"]
    assert [row[0] for row in rows] == ["i3", "i4", "i5", "i6"]
    for _, *words in rows:
        found = [float(word) for word in words]
        assert max(found) == 1
        assert min(found) > 0
        assert words == [f"{value:.4g}" for value in found]
    before = (tmp_path / "w.csv").read_bytes()
    assert main(arguments(my)) == 0
    assert (tmp_path / "w.csv").read_bytes() == before


def test_training_hears_it(my, tmp_path):
    """And the table may be named before it is there."""
    with open(my, "a") as file:
        file.write("method: {ramp: [0.0, 0.0]}\n")
    settings = yaml.safe_load(my.read_text())
    settings["data"] |= {"witness": "w.csv", "crop": 32}
    settings["model"] |= {"encoder": "small", "weights": None}
    settings["train"] |= {"steps": 2, "labeled_batch": 2, "unlabeled_batch": 2, "val_every": 2}
    own = [f"model.encoder={ENCODER}", f"model.weights={yaml.safe_load(my.read_text())['model']['weights']}"]
    my.write_text(yaml.safe_dump(settings))
    assert main(["train", str(my), "--out", str(tmp_path / "run")]) == 2
    assert main(arguments(my, *own)) == 0
    assert main(["train", str(my), "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "record.json").read_text())["lists"]["witness"]["count"] == 4


def test_settings_may_stand_anywhere(my, tmp_path):
    root = (tmp_path / "data").rename(tmp_path / "moved")
    moved = f"data.root={root}"
    classes, out = str(tmp_path / "classes.yaml"), ["--size", "32", "--out", str(tmp_path / "w.csv")]
    for words in ([moved, str(my), classes], [str(my), moved, classes], [str(my), classes, moved]):
        assert main(["witness", *words, *out]) == 0
        assert main(["witness", *out, *words]) == 0
    with pytest.raises(SystemExit) as stopped:
        main(["witness", moved, *out])
    assert stopped.value.code == 2


def test_images_go_whole_and_by_their_short_side(tmp_path, monkeypatch):
    """The long side is of the short one and multiples of 32 pixels; images of one size go together."""
    root = folder_dataset(tmp_path / "data", labeled=1, unlabeled=3)
    (tmp_path / "classes.yaml").write_text("cat: 0\nbird: 2\n")
    Image.new("RGB", (100, 50), (255, 0, 0)).save(root / "images" / "i1.png")
    Image.new("RGB", (30, 41), (0, 0, 127)).save(root / "images" / "i2.png")
    Image.new("RGB", (40, 40), (255, 0, 0)).save(root / "images" / "i0.png")
    Image.new("RGB", (80, 79), (0, 255, 0)).save(root / "images" / "i3.png")
    Image.new("L", (40, 40), 0).save(root / "masks" / "i0.png")
    bright = Bright()
    monkeypatch.setattr(asking, "build_classifier", lambda config, base: bright)
    told = []
    table = make_witness(
        config(data=on_disk(root)), tmp_path / "classes.yaml", size=60, progress=lambda *progress: told.append(progress)
    )
    assert bright.seen == [(2, 3, 60, 60), (1, 3, 60, 124), (1, 3, 92, 60)]
    assert told == [("images", 2, 4), ("images", 3, 4), ("images", 4, 4)]
    assert table.trust == (Trust(Siblings("animal", ("cat", "bird")), 0.25, 1, 1),)
    expected = np.array([[1, math.exp(-1)], [math.exp(-127 / 255), 1], [1, 1]])
    assert table.weights == pytest.approx(expected, rel=1e-4)


def test_scenes(tmp_path, monkeypatch):
    """Inner nodes, and generated images without files."""
    (tmp_path / "classes.yaml").write_text("animal: 0\nvehicle: 1\nplant: 2\ncat: 0\nbird: 1\n")
    monkeypatch.setattr(asking, "build_classifier", lambda config, base: Bright())
    table = make_witness(config(), tmp_path / "classes.yaml", size=40)
    assert table.concepts == ("animal", "cat", "bird", "vehicle", "plant")
    assert table.weights.shape == (5, 5)
    assert [trust.siblings.parent for trust in table.trust] == [None, "animal"]
    assert table.trust[0].images == 4


def changed(my, name, text):
    (my.parent / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "more", "says"),
    [
        (lambda my: changed(my, "classes.yaml", "cat: 0\nbrid: 1\n"), [], "'brid' is no concept of"),
        (lambda my: changed(my, "classes.yaml", "cat: 0\n"), [], "cat is there alone"),
        (lambda my: changed(my, "classes.yaml", "cat: 0\nbird: tabby\n"), [], "bird: 'tabby' is no number"),
        (lambda my: (my.parent / "classes.yaml").unlink(), [], "the file of classes"),
        (lambda my: changed(my, "data/images/i6.png", "no image"), [], "i6.png: cannot be read as an image"),
        (lambda my: changed(my, "data/masks/i2.png", "no mask"), [], "i2.png: cannot be read as a mask"),
        (None, ["model.encoder=small"], "model.encoder is 'small', which was never trained"),
        (None, ["model.weights=null"], "model.weights is null"),
        (None, ["model.weights=nowhere.pth"], "model.weights is 'nowhere.pth'"),
        (None, ["model.encoder=resnet18"], "holds no classifier of resnet18 (fc.weight)"),
        (None, ["data.unlabeled=null"], "data.unlabeled names no image"),
        (None, ["data.labelled=train"], "unknown key data.labelled (did you mean 'labeled'?)"),
        (None, ["--size", "31"], "--size is 31, expected at least 32 pixels"),
        (None, ["train.device=gpu"], "train.device is 'gpu'"),
    ],
)
def test_mistakes_leave_nothing_behind(my, capsys, damage, more, says):
    if damage:
        damage(my)
    there = sorted(my.parent.rglob("*"))
    assert main(arguments(my, *more, out="new/w.csv")) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert told.err.startswith("logicdiag: ")
    assert told.err.count("\n") == 1
    assert sorted(my.parent.rglob("*")) == there


@pytest.mark.parametrize(("out", "says"), [("data", "a folder; expected a file"), ("my.yaml/w.csv", "is no folder")])
def test_a_place_that_cannot_be_written_is_refused_first(my, capsys, monkeypatch, out, says):
    monkeypatch.setattr(module, "make_witness", lambda *args: pytest.fail("it was not refused"))
    assert main(arguments(my, out=out)) == 2
    assert says in capsys.readouterr().err


def test_images_of_one_name(my, tmp_path, capsys):
    for folder in ("a", "b"):
        (tmp_path / folder / "photos").mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(tmp_path / folder / "photos" / "x.png")
    assert main(arguments(my, "data.unlabeled=[a, b]")) == 2
    assert "x.png have one name, 'photos/x'; the table goes by names" in capsys.readouterr().err
    assert not (tmp_path / "w.csv").exists()


def test_masks_of_unlabelled_images_are_never_opened(my, tmp_path):
    """Every file that the command opens is noted, by a hook that cannot be taken away."""
    for number in range(3, 9):
        (tmp_path / "data" / "masks" / f"i{number}.png").write_bytes(b"this is no image")
    program = f"""
import sys
def note(event, args):
    if event == "open" and ("/masks/" in str(args[0]) or "/images/" in str(args[0])):
        with open({str(tmp_path / "opened.txt")!r}, "a") as file:
            file.write(str(args[0]) + "\\n")
sys.addaudithook(note)
from logicdiag.cli import main
sys.exit(main({arguments(my)!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    opened = {line.rsplit("/data/")[1] for line in (tmp_path / "opened.txt").read_text().splitlines()}
    assert {name for name in opened if name.startswith("masks/")} == {f"masks/i{number}.png" for number in range(3)}
    assert {name for name in opened if name.startswith("images/")} == {f"images/i{number}.png" for number in range(7)}
