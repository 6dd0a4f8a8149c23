"""A witness that is learned from the labelled images: by hand, the command, and training."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from logicdiag import Hierarchy
from logicdiag.cli import main
from logicdiag.data.dataset import Dataset, Masked, Photo
from logicdiag.data.open import open_hidden
from logicdiag.engine import asking, likeness
from logicdiag.engine.classes import Siblings
from logicdiag.engine.likeness import CHANCE, FACTORS, HEED, calibrate, learn_witness, portraits, weigh_likeness
from logicdiag.engine.run import load_checkpoint, open_run
from logicdiag.engine.stop import Interrupted
from logicdiag.engine.train import resume, train
from logicdiag.experiment.accuracy import measure_run
from logicdiag.models.torchvision_shim import import_timm

from .small import config, on_disk, same, settings, stop_after
from .stand_ins import Bright
from .test_distributed import two_processes

PETS = Siblings("pet", ("cat", "dog"))


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_portrait():
    """Two images, one sure of class 0 and one of class 1: what they have not in common is all that is left."""
    seen = portraits(np.log(np.array([[0.81, 0.09, 0.1], [0.09, 0.81, 0.1]])))
    assert seen == pytest.approx(np.array([[1, -1, 0], [-1, 1, 0]]) / math.sqrt(2))
    a, b, c = np.sqrt([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.04, 0.16, 0.8]])
    mean = (a + b + c) / 3
    expected = [(x - mean) / np.linalg.norm(x - mean) for x in (a, b, c)]
    assert portraits(np.log(np.array([a, b, c]) ** 2) + 7) == pytest.approx(np.array(expected))


def test_a_score_is_the_likeness_to_those_that_show_it():
    labeled = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    shares = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    cat, dog = np.array([1.3, 0.4]), np.array([0.3, 1.4])
    image = np.array([[0.8, -0.6]])
    expected = [[image[0] @ cat / np.linalg.norm(cat), image[0] @ dog / np.linalg.norm(dog)]]
    assert likeness.likeness(labeled, shares, image) == pytest.approx(np.array(expected))


def plainly(labeled, shares):
    """`calibrate`, image by image and sum by sum: the factor and the gain in standard errors."""
    count, kinds = len(shares), len(shares[0])
    losses = {}
    for t in (0.0, *FACTORS):
        losses[t] = []
        for i in range(count):
            others = [j for j in range(count) if j != i]
            odds = []
            for k in range(kinds):
                mean = sum(shares[j][k] * labeled[j] for j in others)
                score = float(labeled[i] @ mean) / max(float(np.linalg.norm(mean)), 1e-12)
                common = (sum(shares[j][k] for j in others) + 1 / kinds) / count
                odds.append(common * math.exp(t * score))
            truth = [(count * share + 1 / kinds) / (count + 1) for share in shares[i]]
            losses[t].append(-sum(y * math.log(o / sum(odds)) for y, o in zip(truth, odds, strict=True)))
    best = min(losses, key=lambda t: sum(losses[t]))
    gain = np.array(losses[0.0]) - np.array(losses[best])
    return best, gain.mean(), gain.std(ddof=1) / math.sqrt(count)


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(2, 4), st.floats(0.0, 3.0))
def test_trust_is_that_of_a_plain_sum(seed, count, kinds, apart):
    g = np.random.default_rng(seed)
    shares = g.dirichlet([0.2] * kinds, count)
    labeled = g.normal(size=(count, 5)) + apart * shares @ g.normal(size=(kinds, 5))
    labeled /= np.linalg.norm(labeled, axis=1, keepdims=True)
    factor, gain, error = plainly(labeled, shares)
    found = calibrate(Siblings("x", tuple("abcd"[:kinds])), labeled, shares)
    if abs(gain - CHANCE * error) > 1e-8:
        assert found.factor == (factor if gain > CHANCE * error else 0.0)
    assert found.images == count
    assert 0 <= found.right <= count


def clusters(count, noise, seed=0):
    """Cats look one way and dogs another, more or less."""
    g = np.random.default_rng(seed)
    kind = np.arange(count) % 2
    labeled = np.stack([1.0 - 2 * kind, np.zeros(count), np.zeros(count)], 1) + noise * g.normal(size=(count, 3))
    return labeled / np.linalg.norm(labeled, axis=1, keepdims=True), np.eye(2)[kind]


def test_siblings_that_look_apart_are_told_apart():
    found = calibrate(PETS, *clusters(12, 0.1))
    assert found.factor >= 2
    assert (found.images, found.right) == (12, 12)
    assert found.tried == (FACTORS[0], FACTORS[-1])


def test_what_may_be_chance_is_not_said():
    labeled, shares = clusters(12, 0.1)
    shuffled = shares[np.random.default_rng(3).permutation(12)]
    assert calibrate(PETS, labeled, shuffled).factor == 0
    assert calibrate(PETS, labeled[:1], shares[:1]).factor == 0
    assert calibrate(PETS, labeled[:0], shares[:0]).factor == 0
    assert calibrate(Siblings("pet", ("cat",)), labeled, shares[:, :1]).factor == 0
    silent = calibrate(PETS, labeled[:1], shares[:1])
    assert str(silent) == "pet (cat, dog): nothing is said; what 1 labelled image would say may be chance"


def test_a_common_sibling_is_no_evidence():
    """Nine of ten images show a dog, whatever they look like: that is known without looking."""
    g = np.random.default_rng(1)
    labeled = g.normal(size=(30, 4))
    labeled /= np.linalg.norm(labeled, axis=1, keepdims=True)
    assert calibrate(PETS, labeled, np.tile([0.1, 0.9], (30, 1))).factor == 0
    cats = g.uniform(0, 0.2, 30)
    assert calibrate(PETS, labeled, np.stack([cats, 1 - cats], 1)).factor == 0


def masked(name, leaf):
    return Masked(name, lambda: None, lambda: np.array([[leaf, leaf, 255]], np.uint8))


def test_weights_of_unlabelled_images():
    h = Hierarchy.from_dict({"animal": {"pet": ["cat", "dog", "hamster"], "fish": None}, "sky": None, "sea": None})
    labeled, shares = clusters(12, 0.1)
    images = np.array([[1.0, 0, 0], [0, 1, 0], [-0.6, 0.8, 0]])
    leaves = [h.leaves.index("cat" if share[0] else "dog") for share in shares]
    items = tuple(masked(f"l{i}", leaf) for i, leaf in enumerate(leaves))
    photos = tuple(Photo(name, lambda: None) for name in "abc")
    table = weigh_likeness(
        Dataset("mine", h, items, photos, (), {}, lambda name: ()), np.concatenate([labeled, images])
    )
    assert table.concepts == ("cat", "dog")  # nothing is known of hamsters, nor of fish
    assert table.names == ("a", "b", "c")
    silent, told = table.trust
    assert (silent.siblings, silent.factor) == (Siblings("animal", ("pet",)), 0.0)
    assert told.siblings == Siblings("pet", ("cat", "dog"))
    scores = HEED * told.factor * likeness.likeness(labeled, shares, images)
    assert table.weights == pytest.approx(np.exp(scores - scores.max(1, keepdims=True)))
    assert table.weights[0, 0] == table.weights[2, 1] == 1
    assert table.weights[0, 1] < 0.01
    assert 0.3 < table.weights[1].min() < 1


def test_nothing_to_say():
    h = Hierarchy.from_dict({"cat": None, "dog": None})
    data = Dataset("mine", h, (masked("l", 0),), (Photo("a", lambda: None),), (), {}, lambda name: ())
    table = weigh_likeness(data, np.eye(2))
    assert table.concepts == table.trust == ()
    with pytest.raises(ValueError, match="nothing to say: the hierarchy has no siblings below a concept"):
        table.write(Path("w.csv"))


# ---- the command and training ----------------------------------------------------------------------------------------


def telling(root, labeled=8, unlabeled=6, val=2):
    """Cats are red and birds are blue, below a sky; some masks have both. All images have a mask."""
    for name in ("images", "masks", "splits"):
        (root / name).mkdir(parents=True)
    (root / "dataset.yaml").write_text("classes: [cat, bird, sky]\nhierarchy: {animal: [cat, bird], sky: }\n")
    g = np.random.default_rng(0)
    splits = {"labeled": [], "train": [], "val": []}
    for number in range(labeled + unlabeled + val):
        image, mask = g.integers(0, 90, (40, 40, 3), dtype=np.uint8), np.full((40, 40), 2, np.uint8)
        image[10:, :, 2 * (number % 2)] += 160
        mask[10:] = number % 2
        mask[38:] = (number // 3) % 2
        Image.fromarray(image).save(root / "images" / f"i{number}.png")
        Image.fromarray(mask).save(root / "masks" / f"i{number}.png")
        if number < labeled:
            splits["labeled"].append(f"i{number}")
        splits["train" if number < labeled + unlabeled else "val"].append(f"i{number}")
    for name, names in splits.items():
        (root / "splits" / f"{name}.txt").write_text("\n".join(names) + "\n")
    return root


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Of a training that hears a classifier which knows colours."""
    monkeypatch.setattr(asking, "build_classifier", lambda config, base: Bright())
    return {**on_disk(telling(tmp_path / "data")), "crop": 32, "workers": 0, "witness": "labels"}


def test_the_table(data):
    table = learn_witness(config(data=data), size=32)
    assert table.concepts == ("cat", "bird")
    assert table.names == tuple(f"i{number}" for number in range(8, 14))
    assert table.weights.argmax(1).tolist() == [0, 1] * 3
    assert table.weights.min(1).max() < 0.01
    assert [(trust.images, trust.right) for trust in table.trust] == [(8, 8)]


def test_what_is_not_finite_is_refused(data, monkeypatch):
    monkeypatch.setattr(Bright, "forward", lambda self, image: image.mean((2, 3)) / 0)
    with pytest.raises(ValueError, match="i0.png: the classifier says nothing finite about it"):
        learn_witness(config(data=data), size=32)


def test_training_with_it(data, tmp_path, capsys, monkeypatch):
    """It is heard, written down, and heard again when the run goes on, also if the classifier is gone by then."""
    settled = config(data=data, train={"steps": 4, "val_every": 4})
    whole = train(settled, tmp_path / "whole")
    told = capsys.readouterr().err
    assert told.startswith("data.witness: 6 unlabelled images\nanimal (cat, bird): t = ")
    text = (tmp_path / "whole" / "witness.csv").read_text()
    assert text == learn_witness(settled).text()
    record = json.loads((tmp_path / "whole" / "record.json").read_text())["lists"]["witness"]
    assert record["count"] == 6
    assert whole.dataset().witness == ("cat", "bird")
    assert all(photo.heard is not None for photo in whole.dataset().unlabeled)

    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Interrupted):
            train(settled, tmp_path / "parts")
    monkeypatch.setattr(asking, "build_classifier", lambda config, base: pytest.fail("it was asked again"))
    resume(tmp_path / "parts")
    same(*(load_checkpoint(tmp_path / name, "cpu")["model"] for name in ("whole", "parts")))

    silent = train(config(data={**data, "witness": None}, train={"steps": 4, "val_every": 4}), tmp_path / "silent")
    mine, theirs = (load_checkpoint(run.path, "cpu")["model"]["classifier.weight"] for run in (whole, silent))
    assert not torch.equal(mine, theirs)


def test_pseudo_labels_are_measured_with_it(data, tmp_path):
    run = train(config(data=data, train={"steps": 2, "val_every": 2}), tmp_path / "run")
    hidden = open_hidden(run.data, run.base)
    assert hidden.witness == ("cat", "bird")
    assert [item.name for item in hidden.items if item.heard is not None] == [f"i{number}" for number in range(8, 14)]
    assert measure_run(tmp_path / "run")["images"] == 6


def test_no_witness_where_nobody_listens_or_nothing_is_known(data, tmp_path, capsys, monkeypatch):
    short = {"steps": 1, "val_every": 1}
    monkeypatch.setattr(Bright, "forward", lambda self, image: image.mean((2, 3)) * 0)
    run = train(config(data=data, train=short), tmp_path / "silent")
    assert (
        "animal (cat, bird): nothing is said; what 8 labelled images would say may be chance" in capsys.readouterr().err
    )
    assert not (run.path / "witness.csv").exists()
    assert run.dataset().witness == open_hidden(run.data, run.base).witness == ()
    resume(run.path)
    monkeypatch.setattr(asking, "build_classifier", lambda config, base: pytest.fail("it was asked"))
    train(config(data=data, method={"name": "supervised"}, train=short), tmp_path / "supervised")
    assert main(["data", "check", str(written(tmp_path, data))]) == 0


def written(folder, data, **changes):
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(settings(data=data, **changes)))
    return path


def test_mistakes_leave_no_run_behind(data, tmp_path, capsys, monkeypatch):
    monkeypatch.undo()
    my = written(tmp_path, data)
    assert main(["train", str(my), "--out", str(tmp_path / "run")]) == 2
    assert "model.encoder is 'small', which was never trained to classify" in capsys.readouterr().err
    assert main(["train", str(my), "method.name=fixmach", "--out", str(tmp_path / "run")]) == 2
    assert "did you mean 'fixmatch'?" in capsys.readouterr().err
    assert main(["train", str(my), "train.steps=0", "--out", str(tmp_path / "run")]) == 2
    assert "train.steps is 0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter.txt").write_text("mine")
    monkeypatch.setattr(likeness, "learn_witness", lambda *args, **more: pytest.fail("it was not refused first"))
    assert main(["train", str(my), "--out", str(tmp_path / "used")]) == 2
    assert "holds other files" in capsys.readouterr().err


def test_the_command(data, tmp_path, capsys, monkeypatch):
    my = written(tmp_path, {**data, "witness": "w.csv"})  # which is not there yet
    out = ["--size", "32", "--out", str(tmp_path / "w.csv")]
    assert main(["witness", str(my), *out]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{tmp_path / 'w.csv'}: 6 unlabelled images\nanimal (cat, bird): t = ")
    assert told.endswith("; right about 8 of 8 labelled images\n")
    text = (tmp_path / "w.csv").read_text()
    assert text == learn_witness(config(data=data), size=32).text()
    for words in (["data.workers=0", str(my)], [str(my), "data.workers=0"]):
        assert main(["witness", *words, *out]) == 0
    monkeypatch.setattr(Bright, "forward", lambda self, image: image.mean((2, 3)) * 0)
    (tmp_path / "w.csv").unlink()
    assert main(["witness", str(my), *out]) == 2
    assert (
        "w.csv is not written, because there is nothing to say: animal (cat, bird): nothing" in capsys.readouterr().err
    )
    assert not (tmp_path / "w.csv").exists()


def with_weights(folder, data):
    """my.yaml, and a classifier that knows nothing, in a file: for processes of their own."""
    torch.manual_seed(0)
    torch.save(import_timm().create_model("mobilenetv3_small_050", num_classes=3).state_dict(), folder / "w.pth")
    return written(folder, data, model={"encoder": "mobilenetv3_small_050", "weights": str(folder / "w.pth")})


def test_masks_of_unlabelled_images_are_never_opened(data, tmp_path):
    """Every file that training opens is noted, by a hook that cannot be taken away."""
    for number in range(8, 14):
        (tmp_path / "data" / "masks" / f"i{number}.png").write_bytes(b"this is no image")
    words = ["train", str(with_weights(tmp_path, data)), "train.steps=1", "--out", str(tmp_path / "run")]
    program = f"""
import sys
def note(event, args):
    if event == "open" and "/masks/" in str(args[0]):
        with open({str(tmp_path / "opened.txt")!r}, "a") as file:
            file.write(str(args[0]) + "\\n")
sys.addaudithook(note)
from logicdiag.cli import main
sys.exit(main({words!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "data.witness: 6 unlabelled images" in done.stderr
    opened = {Path(line).stem for line in (tmp_path / "opened.txt").read_text().splitlines()}
    assert opened == {f"i{number}" for number in (*range(8), 14, 15)}


@pytest.mark.slow
def test_two_processes_hear_the_same(data, tmp_path):
    batches = ("train.labeled_batch=4", "train.unlabeled_batch=4")
    codes, told = two_processes(with_weights(tmp_path, data), *batches, "--out", tmp_path / "two")
    assert codes == [0, 0], told
    assert "data.witness: 6 unlabelled images" in told[0][1]
    assert told[1] == ("", "")
    assert open_run(tmp_path / "two").config.data.witness == "labels"
