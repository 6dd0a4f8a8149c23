"""Commands as a user types them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import logicdiag as ld
from logicdiag import files
from logicdiag.cli import main


@pytest.fixture
def probs(tmp_path):
    path = tmp_path / "probs.npy"
    np.save(path, np.random.default_rng(0).random((2, 24, 9, 11), dtype=np.float32))
    return path


def run(*arguments, expect=0):
    assert main([str(a) for a in arguments]) == expect


def test_hierarchy_show(capsys, tmp_path):
    run("hierarchy", "show", "cityscapes")
    out = capsys.readouterr().out
    assert out.startswith("cityscapes  (25 nodes, 19 leaves, 2 levels)\n├─ flat\n│  ├─ road")
    run("hierarchy", "show", "camvid", "--yaml")
    assert ld.Hierarchy.from_yaml(capsys.readouterr().out) == ld.Hierarchy.load("camvid")
    run("hierarchy", "show", "citiscapes", expect=2)
    assert "did you mean 'cityscapes'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expect", "says"),
    [
        (
            "forall x: cat(x) -> ~bottle(x) | person(x)\n",
            0,
            "rule 'forall x: cat(x) -> ~bottle(x) | person(x)' follows",
        ),
        ("r: forall x: ~cat(x)\n", 0, "class 'cat' can never be true, because of: r"),
        ("r: exists x: cat(x)\n", 0, "note: rule 'r' counts in truth degrees only"),
        ("a: forall x: cat(x)\nb: forall x: ~cat(x)\n", 2, "error: these rules contradict each other: a; b"),
        ("forall x: cta(x)\n", 2, "unknown class 'cta' (did you mean 'cat'?)\n  forall x: cta(x)\n            ^"),
        ("forall x: cat(x) ->\n", 2, ":1:20: the rule ends where"),
    ],
)
def test_rules_check(capsys, tmp_path, text, expect, says):
    path = tmp_path / "my.rules"
    path.write_text(text, "utf-8")
    run("rules", "check", path, "--hierarchy", "voc2012", expect=expect)
    captured = capsys.readouterr()
    assert says in captured.out + captured.err


def test_diagnose(capsys, tmp_path, probs):
    rules = tmp_path / "my.rules"
    rules.write_text("no_cats: forall x: ~cat(x)\n", "utf-8")
    out = tmp_path / "out"
    run("diagnose", probs, "--hierarchy", "voc2012", "--rules", rules, "--seed", 3, "--out", out)
    printed = capsys.readouterr().out
    assert "198 pixels, 198 in conflict (100.00%), all repaired by sampling" in printed
    assert sorted(p.name for p in out.iterdir()) == ["leaf.png", "revised.npy", "summary.json"]

    kb = ld.KnowledgeBase(ld.Hierarchy.load("voc2012"), rules=rules)
    revised = torch.from_numpy(np.load(out / "revised.npy"))
    assert revised.shape == (2, 24, 9, 11)
    assert kb.is_consistent(revised.movedim(1, -1)).all()

    leaf = Image.open(out / "leaf.png")
    assert leaf.mode == "P"
    leaves = revised[:, list(kb.hierarchy.leaf_indices)]
    assert np.array_equal(np.asarray(leaf), leaves.to(torch.uint8).argmax(1).reshape(18, 11).numpy())

    summary = json.loads((out / "summary.json").read_text("utf-8"))
    observed = torch.from_numpy(np.load(probs)) > 0.5
    assert summary["conflict_rate"] == 1.0
    assert summary["broken_rules"] == kb.count_broken(observed.movedim(1, -1).reshape(-1, 24))
    cat = kb.hierarchy.index("cat")
    assert summary["broken_rules"]["no_cats"] == int(observed[:, cat].sum())
    assert summary["revisions"]["cat"] == {"to_true": 0, "to_false": int(observed[:, cat].sum())}
    degrees = ld.Diagnoser(kb).truth_degrees(torch.from_numpy(np.load(probs)))
    assert summary["truth_degrees"]["E"]["cat"] == pytest.approx(float(degrees["E"][cat]), abs=1e-5)


@pytest.mark.parametrize("shape", [(30, 24), (24, 5, 7), (3, 24, 5, 7)])
@pytest.mark.parametrize("strategy", ["greedy", "uniform"])
def test_shapes_chunks_and_seeds(tmp_path, monkeypatch, shape, strategy):
    array = np.random.default_rng(1).random(shape)
    path = tmp_path / "p.npy"
    np.save(path, array)
    command = ("diagnose", path, "--hierarchy", "voc2012", "--families", "CE", "--strategy", strategy)
    run(*command, "--out", tmp_path / "a")
    run(*command, "--out", tmp_path / "b")
    first = np.load(tmp_path / "a" / "revised.npy")
    assert np.array_equal(first, np.load(tmp_path / "b" / "revised.npy"))
    if strategy == "greedy":
        monkeypatch.setattr(files, "CHUNK", 4)
        run(*command, "--out", tmp_path / "c")
        assert np.array_equal(first, np.load(tmp_path / "c" / "revised.npy"))


def test_arrays_in_other_layouts(tmp_path):
    array = np.random.default_rng(1).random((24, 6, 5))
    np.save(tmp_path / "c.npy", array)
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    np.save(tmp_path / "last.npy", np.moveaxis(array, 0, -1).copy())
    for name, more in (("c", ()), ("f", ()), ("last", ("--dim", 2))):
        command = ("diagnose", tmp_path / f"{name}.npy", "--hierarchy", "voc2012", "--strategy", "greedy", *more)
        run(*command, "--out", tmp_path / name)
    one = np.load(tmp_path / "c" / "revised.npy")
    assert np.array_equal(one, np.load(tmp_path / "f" / "revised.npy"))
    assert np.array_equal(one, np.moveaxis(np.load(tmp_path / "last" / "revised.npy"), -1, 0))


def test_more_leaves_than_a_palette_has(tmp_path):
    (tmp_path / "wide.yaml").write_text("\n".join(f"n{i}:" for i in range(300)), "utf-8")
    np.save(tmp_path / "p.npy", np.random.default_rng(0).random((40, 300)))
    run("diagnose", tmp_path / "p.npy", "--hierarchy", tmp_path / "wide.yaml", "--out", tmp_path / "out")
    picture = np.asarray(Image.open(tmp_path / "out" / "leaf.png"))
    revised = np.load(tmp_path / "out" / "revised.npy")
    assert np.array_equal(picture[0, :40], revised.argmax(1) + 1)
    assert (picture[0, 40:] == 0).all()


def test_mistakes_exit_with_2_and_leave_nothing(capsys, tmp_path, probs):
    out = tmp_path / "out"
    wrong = np.load(probs)
    wrong[1, 5, 2, 3] = np.nan
    np.save(tmp_path / "nan.npy", wrong)
    np.save(tmp_path / "int.npy", np.zeros((4, 24), dtype=np.int32))
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.save(tmp_path / "channels.npy", np.zeros((4, 20)))
    np.save(tmp_path / "flat.npy", np.zeros(24))
    np.save(tmp_path / "foreign.npy", np.zeros((4, 24), dtype=">f4"))
    (tmp_path / "text.npy").write_text("no array")
    for arguments, says in [
        (
            (tmp_path / "nan.npy", "--hierarchy", "voc2012"),
            "nan.npy: 1 value is not in [0, 1]; the first is nan at [1, 5, 2, 3]",
        ),
        ((tmp_path / "nan.npy", "--hierarchy", "voc2012", "--strategy", "uniform"), "at [1, 5, 2, 3], concept 'cow'"),
        ((tmp_path / "int.npy", "--hierarchy", "voc2012"), "the array is int32, expected float16"),
        ((tmp_path / "flat.npy", "--hierarchy", "voc2012"), "has shape (24,), expected (N, n), (n, H, W)"),
        ((tmp_path / "foreign.npy", "--hierarchy", "voc2012"), "foreign byte order"),
        ((probs, "--hierarchy", "voc2012", "--seed", 10**30), "expected a whole number from 0 to 2**63 - 1"),
        ((tmp_path / "objects.npy", "--hierarchy", "voc2012"), "not a .npy array of numbers"),
        ((tmp_path / "text.npy", "--hierarchy", "voc2012"), "not a .npy array of numbers"),
        ((tmp_path / "channels.npy", "--hierarchy", "voc2012"), "has 24 concepts"),
        ((tmp_path / "missing.npy", "--hierarchy", "voc2012"), "there is no such file"),
        ((probs, "--hierarchy", "voc2012", "--strategy", "gredy"), "did you mean 'greedy'"),
        ((probs, "--hierarchy", "voc2012", "--families", "CDF"), "'F' is not one of C"),
        ((probs, "--hierarchy", "voc2012", "--root", "fre"), "did you mean 'free'"),
    ]:
        run("diagnose", *arguments, "--out", out, expect=2)
        message = capsys.readouterr().err
        assert says in message
        assert "Traceback" not in message
        assert not out.exists()


def test_an_interruption_leaves_the_old_files_whole(tmp_path, probs, monkeypatch):
    out = tmp_path / "out"
    command = ("diagnose", probs, "--hierarchy", "voc2012", "--out", out)
    run(*command)
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def interrupt(self, result):
        raise KeyboardInterrupt

    monkeypatch.setattr(files._Tally, "add", interrupt)
    run(*command, "--seed", 5, expect=130)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_help_of_every_command():
    for arguments in (
        ["--help"],
        ["rules", "check", "--help"],
        ["hierarchy", "show", "-h"],
        ["diagnose", "-h"],
        ["--version"],
    ):
        done = subprocess.run([sys.executable, "-m", "logicdiag.cli", *arguments], capture_output=True, text=True)
        assert done.returncode == 0
        assert done.stdout


def test_nothing_of_the_users_is_overwritten(capsys, tmp_path, probs):
    own = tmp_path / "own"
    own.mkdir()
    probs.rename(own / "revised.npy")
    before = (own / "revised.npy").read_bytes()
    run("diagnose", own / "revised.npy", "--hierarchy", "voc2012", "--out", own, expect=2)
    assert "would be overwritten" in capsys.readouterr().err
    assert (own / "revised.npy").read_bytes() == before
    taken = tmp_path / "taken"
    (taken / "leaf.png").mkdir(parents=True)
    run("diagnose", own / "revised.npy", "--hierarchy", "voc2012", "--out", taken, expect=2)
    assert "leaf.png: is a folder" in capsys.readouterr().err
    assert [p.name for p in taken.iterdir()] == ["leaf.png"]
    run("diagnose", own / "revised.npy", "--hierarchy", "voc2012", "--out", own / "revised.npy", expect=2)
    assert "is a file, expected a folder" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(0, 24), (24, 0, 7)])
def test_empty_arrays(tmp_path, shape):
    np.save(tmp_path / "p.npy", np.zeros(shape))
    run("diagnose", tmp_path / "p.npy", "--hierarchy", "voc2012", "--out", tmp_path / "out")
    assert np.load(tmp_path / "out" / "revised.npy").shape == shape


def test_a_closed_pipe_and_a_poor_terminal(tmp_path):
    command = f"{sys.executable} -m logicdiag.cli hierarchy show coco"
    piped = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -1"], capture_output=True, text=True)
    assert (piped.returncode, piped.stderr) == (0, "")
    poor = subprocess.run(command.split(), capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert poor.returncode == 0
    assert b"background" in poor.stdout
