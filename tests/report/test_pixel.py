"""`logicdiag explain`: the words are the library's own explanation of that pixel."""

import json
import os

import pytest
import torch
from PIL import Image

from logicdiag import Diagnoser
from logicdiag.cli import main
from logicdiag.engine.inference import predict_logits
from logicdiag.report.look import NONE, Viewer, find_image, truth_of, validation
from logicdiag.report.pixel import explain_pixel, parse_at


@pytest.fixture
def said(capsys):
    def run(*arguments, expect=0):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.err
        return captured.out if expect == 0 else captured.err

    return run


def by_hand(run, name, x, y, seed=0):
    """The explanation, from nothing but the engine and the library."""
    image = next(item for item in validation(run) if item.name == name).image()
    model = run.model("last")
    shown = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    probs = model.probs(predict_logits(model, shown))
    psi = run.config.psi
    d = Diagnoser(run.knowledge, psi.strategy, psi.q, psi.connectives, psi.quantifier, psi.budget)
    result = d(probs, generator=torch.Generator().manual_seed(seed))
    return d.explain_at(probs, (0, y, x), result), result


def in_conflict(run, name):
    _, result = by_hand(run, name, 0, 0)
    y, x = result.conflict[0].nonzero()[7].tolist()
    return x, y


@pytest.mark.parametrize("seed", [0, 3])
def test_the_words_are_the_library_s(said, run, seed):
    name = validation(run)[1].name
    x, y = in_conflict(run, name)
    expected, _ = by_hand(run, name, x, y, seed)
    assert expected.broken
    out = said("explain", run.path, name, "--at", f"{x},{y}", "--seed", seed, "--device", "cpu")
    assert str(expected).rstrip("\n") in out
    assert out.startswith(f"{name} (48 x 48), pixel {x},{y}, last checkpoint\n")
    assert (
        f"why: it was drawn by likelihood, with a probability of {expected.taken.probability:.1%} (seed {seed})" in out
    )


def test_json(said, run):
    name = validation(run)[0].name
    x, y = in_conflict(run, name)
    expected, result = by_hand(run, name, x, y)
    found = json.loads(said("explain", run.path, name, f"--at={x},{y}", "--json", "--device", "cpu"))
    assert {key: found[key] for key in expected.as_dict()} == expected.as_dict()
    assert found["at"] == [x, y]
    assert found["size"] == [48, 48]
    d = Diagnoser(run.knowledge, run.config.psi.strategy)
    assert list(found["conflict_degrees"].values()) == d.conflict_degree(result.truth_degrees).tolist()
    leaves = {leaf: found["probabilities"][leaf] for leaf in run.hierarchy.leaves}
    best = max(leaves, key=lambda leaf: leaves[leaf])
    assert found["chosen"] == {"leaf": best, "probability": pytest.approx(leaves[best])}
    assert found["threshold"] == {"threshold": 0.95, "counts": leaves[best] >= 0.95}


def test_an_image_file_and_its_name_are_explained_alike(said, run, tmp_path):
    item = validation(run)[2]
    Image.fromarray(item.image()).save(tmp_path / "photo.png")
    x, y = in_conflict(run, item.name)
    by_name, by_file = (
        json.loads(said("explain", run.path, image, "--at", f"{x},{y}", "--json", "--device", "cpu"))
        for image in (item.name, tmp_path / "photo.png")
    )
    assert by_file.pop("image") == str(tmp_path / "photo.png")
    assert by_name.pop("image") == item.name
    assert by_file == by_name


def test_greedy_takes_the_likeliest(said, run):
    name = validation(run)[0].name
    x, y = in_conflict(run, name)
    out = said("explain", run.path, name, "psi.strategy=greedy", "--at", f"{x},{y}", "--device", "cpu")
    assert "taken (greedy): " in out
    assert "why: it is the likeliest, with a probability of " in out


def test_a_pixel_without_conflict(run):
    """Outputs that spell a leaf exactly: nothing is to be decided."""
    viewer = Viewer(run, device="cpu")
    h = run.hierarchy
    logits = torch.full((1, len(h), 2, 3), -8.0)
    logits[:, list(h.path_indices(h.leaf_indices[3]))] = 8.0
    look = viewer.read(validation(run)[0].image()[:2, :3], logits)
    found = explain_pixel(viewer, look, (2, 1))
    assert found.why == "nothing was to be decided"
    assert "no rule is broken" in str(found)
    assert "why:" not in str(found)
    assert found.counts
    assert look.before.eq(3).all()
    assert look.after.eq(3).all()
    assert look.sure.eq(3).all()


def test_what_breaks_a_rule_spells_no_leaf(run):
    viewer = Viewer(run, device="cpu")
    h = run.hierarchy
    logits = torch.full((1, len(h), 1, 2), -8.0)
    logits[0, h.leaf_indices[3], 0, 0] = 1.0  # a leaf without its parents
    logits[0, list(h.path_indices(h.leaf_indices[2])), 0, 1] = 1.0
    look = viewer.read(validation(run)[0].image()[:1, :2], logits)
    assert look.conflict.tolist() == [[True, False]]
    assert look.before.tolist() == [[NONE, 2]]
    assert look.chosen.tolist() == [[3, 2]]
    assert look.sure.tolist() == [[NONE, NONE]]  # 0.73 is below the threshold


def test_images_have_the_masks_that_may_be_opened(run):
    data = run.dataset()
    assert truth_of(find_image(run, data.val[0].name)) is not None
    assert truth_of(find_image(run, data.labeled[0].name)) is not None
    assert truth_of(find_image(run, data.unlabeled[0].name)) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("RUN NAME --at 48,0", "--at is 48,0, but NAME is 48 x 48 pixels: X is from 0 to 47, Y from 0 to 47"),
        ("RUN NAME --at=-1,0", "--at is -1,0, but NAME is 48 x 48 pixels"),
        ("RUN NAME --at 3;4", "--at is '3;4', expected X,Y: column and row in pixels, such as 120,45"),
        ("RUN nowhere.png --at 1,1", "nowhere.png: there is no such file"),
        ("RUN phoot.png --at 1,1", "phoot.png: there is no such file (did you mean 'photo.png'?)"),
        ("RUN val_000 --at 1,1", "val_000: neither a file nor an image in the data of RUN (did you mean 'val_0003'?)"),
        ("RUN photo.png --at 1,1", "photo.png"),
        ("RUN . --at 1,1", ".: is a folder, expected an image"),
        ("FLAT NAME --at 1,1", "FLAT: the run has model.head flat, which predicts leaves alone"),
        ("nowhere NAME --at 1,1", "nowhere is no run folder"),
        ("RUN NAME --at 1,1 --checkpoint beste", "checkpoint is 'beste', expected one of last, best"),
        ("RUN NAME --at 1,1 --size 64", "--size and --stride belong to --mode"),
        ("RUN NAME --at 1,1 psi.strategy=greed", "did you mean 'greedy'"),
    ],
)
def test_mistakes(said, run, flat_run, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").write_text("this is no image")
    places = {"RUN": str(run.path), "FLAT": str(flat_run.path), "NAME": validation(run)[0].name}
    for short, long in places.items():
        says = says.replace(short, long)
    err = said("explain", *(places.get(word, word) for word in arguments.split()), expect=2)
    assert says in err
    assert len(err.splitlines()) == 1
    assert os.listdir(tmp_path) == ["photo.png"]


def test_spaces_around_numbers():
    assert parse_at(" 3 , 40 ") == (3, 40)
