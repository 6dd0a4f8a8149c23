"""train, evaluate, predict and data check as a user types them, mistakes included."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from logicdiag.cli import main
from logicdiag.engine.load import load_config
from logicdiag.engine.run import load_checkpoint, open_run

from .engine.small import config_file, folder_dataset, on_disk


@pytest.fixture
def said(capsys):
    """Run a command: its exit code must be `expect`; what it printed is returned."""

    def run(*arguments, expect=0):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.err
        return captured.out if expect == 0 else captured.err

    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder_dataset(tmp_path_factory.mktemp("disk") / "data")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    path = config_file(folder, data=on_disk(data), train={"steps": 2, "val_every": 1})
    assert main(["train", str(path), "--out", str(folder / "run")]) == 0
    return folder / "run"


# ---- train --------------------------------------------------------------------------------------------------------


ORDERS = [
    "CONFIG train.steps=1 --out RUN",
    "CONFIG --out RUN train.steps=1",
    "--out RUN CONFIG train.steps=1",
    "--out RUN train.steps=1 CONFIG",
    "train.steps=1 CONFIG --out RUN",
    "train.steps=1 --out RUN CONFIG",
    "CONFIG train.steps=7 --out RUN train.steps=1",
]


@pytest.mark.parametrize("order", ORDERS)
def test_settings_may_stand_anywhere(said, tmp_path, order):
    path = config_file(tmp_path)
    words = [{"CONFIG": str(path), "RUN": str(tmp_path / "run")}.get(word, word) for word in order.split()]
    printed = yaml.safe_load(said("train", "--print-config", *words))
    assert printed["train"]["steps"] == 1
    assert printed["data"]["layout"] == "scenes"
    assert not (tmp_path / "run").exists()


def test_print_config_is_a_configuration(said, tmp_path):
    path = config_file(tmp_path)
    (tmp_path / "all.yaml").write_text(said("train", path, "optimizer.lr=1e-3", "--print-config"))
    assert load_config(tmp_path / "all.yaml") == load_config(path, ["optimizer.lr=1e-3"])


def test_train_resume_evaluate(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = config_file(tmp_path)
    assert said("train", path, "train.steps=2") == "done: runs/small; next: logicdiag evaluate runs/small\n"
    assert said("train", "--resume", "runs/small").startswith("done: runs/small")
    out = said("evaluate", "runs/small")
    assert "last" in out
    assert "best" in out
    assert "13 classes)" in out
    assert "written: runs/small/evaluation-val.json" in out
    record = json.loads(Path("runs/small/record.json").read_text())["lists"]["labeled"]
    assert f"trained on {record['count']} masks (list {record['fingerprint'][:8]})" in out.replace("\n", " ")
    evaluation = json.loads(Path("runs/small/evaluation-val.json").read_text())
    assert evaluation["checkpoints"]["last"]["labeled"] == record


def test_ctrl_c(said, tmp_path, monkeypatch):
    from .engine.small import stop_after

    path = config_file(tmp_path)
    stop_after(monkeypatch, 2)
    err = said("train", path, "--out", tmp_path / "run", expect=130)
    last = err.splitlines()[-1]
    assert last == f"logicdiag: stopped at step 2 of 6; go on with: logicdiag train --resume {tmp_path / 'run'}"
    said("train", "--resume", tmp_path / "run", "data.workers=0")
    assert load_checkpoint(tmp_path / "run", "cpu")["done"] == 6


# ---- evaluate and predict -----------------------------------------------------------------------------------------


def test_evaluate_prints_last_and_best(said, run_folder):
    out = said("evaluate", run_folder, "--device", "cpu")
    assert "last" in out
    assert "best" in out
    found = json.loads(said("evaluate", run_folder, "--json"))
    assert found.keys() == {"last", "best"}
    assert found["last"]["images"] == 2
    written = json.loads((run_folder / "evaluation-val.json").read_text())
    assert written["checkpoints"]["best"] == found["best"]
    found = json.loads(said("evaluate", run_folder, "--split", "train", "--checkpoint", "last", "--json"))
    assert found.keys() == {"last"}
    assert found["last"]["images"] == 7


def test_evaluate_as_another_run_would_be_is_not_written(said, run_folder):
    said("evaluate", run_folder)
    before = (run_folder / "evaluation-val.json").read_text()
    out = said("evaluate", run_folder, "model.decision=tree", "data.workers=0")
    assert out.rstrip().endswith("with model.decision=tree, so not the run's own, and not written")
    assert (run_folder / "evaluation-val.json").read_text() == before


def test_evaluate_where_the_data_moved(said, run_folder, data, tmp_path):
    moved = shutil.copytree(data, tmp_path / "elsewhere")
    before = json.loads(said("evaluate", run_folder, "--json"))
    for order in ((run_folder, f"data.root={moved}"), (f"data.root={moved}", run_folder)):
        after = json.loads(said("evaluate", "--json", *order))
        assert after["last"]["list"]["source"] == str(moved / "splits" / "val.txt")
        assert after["last"]["levels"] == before["last"]["levels"]


def test_predict_writes_files(said, run_folder, data, tmp_path):
    out = said("predict", run_folder, data / "images" / "i0.png", "--out", tmp_path / "out", "--probabilities")
    assert out == f"1 image predicted into {tmp_path / 'out'}\n"
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"classes.json", "masks/i0.png", "overlays/i0.jpg", "probabilities/i0.npz"}
    mask = np.asarray(Image.open(tmp_path / "out" / "masks" / "i0.png"))
    assert mask.shape == (40, 40)
    assert mask.max() < 3
    out = said("predict", run_folder, data / "images", "--out", tmp_path / "all", "--no-overlay", "--mode", "slide",
               "--size", "32", "--checkpoint", "best")  # fmt: skip
    assert out.startswith("9 images predicted")
    assert not (tmp_path / "all" / "overlays").exists()


# ---- data check ---------------------------------------------------------------------------------------------------


def test_data_check(said, tmp_path, data, capsys):
    path = config_file(tmp_path, data=on_disk(data))
    out = said("data", "check", path)
    assert "labeled" in out or "labelled" in out
    broken = shutil.copytree(data, tmp_path / "broken")
    Image.new("L", (7, 9)).save(broken / "masks" / "i0.png")
    assert main(["data", "check", str(path), f"data.root={broken}"]) == 2
    assert "i0" in capsys.readouterr().out
    assert main(["data", "check", f"data.root={broken}", str(path)]) == 2


# ---- mistakes -----------------------------------------------------------------------------------------------------


def one_line(err):
    """A sentence after the program's name, and no traceback."""
    told = [line for line in err.splitlines() if not line.startswith(("step ", "warning: ")) and " head, " not in line]
    assert len(told) == 1, err
    assert told[0].startswith("logicdiag: ")
    return told[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("train", "a configuration is missing: logicdiag train CONFIG.yaml, or --resume RUN"),
        ("train train.steps=1", "a configuration is missing"),
        ("train smal.yaml", "smal.yaml cannot be read: No such file or directory (did you mean 'small.yaml'?)"),
        ("train .", "the configuration . cannot be read: Is a directory"),
        ("train small.yaml other.yaml", "'other.yaml' is no change of a setting, expected key=value"),
        ("train small.yaml optimzer.lr=1", "the command line: unknown key optimzer (did you mean 'optimizer'?)"),
        ("train small.yaml optimizer.lr=fast", "optimizer.lr is 'fast', expected a number"),
        ("train small.yaml method.name=fixmach", "did you mean 'fixmatch'"),
        ("train small.yaml train.device=cuda:9", "train.device is cuda:9, but this machine has"),
        ("train small.yaml model.head=flat", "set model.head to hierarchical, or psi.name to threshold"),
        ("train small.yaml data.layout=folder", "data.root is empty"),
        ("train small.yaml data.layout=folder data.root=nowhere", "data.root is 'nowhere'"),
        ("train small.yaml psi.rules=no.rules", "no.rules"),
        ("train small.yaml model.weights=no.pth", "no.pth"),
        ("train small.yaml --out small.yaml", "small.yaml is a file, expected a folder for the run"),
        ("train --resume", None),
        ("train --resume nowhere", "nowhere is no run folder: it has no config.yaml"),
        ("train --resume .", ". is no run folder: it has no config.yaml"),
        ("train small.yaml --resume nowhere", "--resume goes on with a run as it was"),
        ("train --resume nowhere train.seed=3", "train.seed=3 cannot change, only data.root, data.labeled"),
        ("train --resume nowhere --print-config", "--resume goes on with a run as it was"),
        ("train small.yaml --outt x", None),
        ("evaluate nowhere", "nowhere is no run folder"),
        ("evaluate data.root=x", None),
        ("evaluate --split", None),
        ("evaluate small.yaml", "small.yaml is no run folder"),
        ("predict nowhere small.yaml --out x", "small.yaml"),
        ("data check nowhere.yaml", "nowhere.yaml cannot be read"),
        ("data check small.yaml data.layout=folder data.root=nowhere", None),
        ("data chekc small.yaml", None),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    config_file(tmp_path)
    try:
        code = main(arguments.split())
    except SystemExit as stopped:  # argparse
        code = stopped.code
    captured = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in captured.out + captured.err
    if says is not None:
        assert says in one_line(captured.err)
        assert captured.out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("evaluate RUN --split tset", "'tset'"),
        (
            "evaluate RUN --checkpoint lst",
            "checkpoint is 'lst', expected one of both, last, best (did you mean 'last'?)",
        ),
        ("evaluate RUN --mode slid --size 64", "did you mean 'slide'"),
        ("evaluate RUN --mode slide --size 8", "inference.size is 8, expected at least 32"),
        ("evaluate RUN --size 64", "--size and --stride belong to --mode"),
        ("evaluate RUN --precision fp8", "precision is 'fp8', expected one of fp32, bf16, fp16"),
        ("evaluate RUN --device gpu", "device is 'gpu', expected auto, cpu, cuda, cuda:1 or mps"),
        ("evaluate RUN --device cuda:9", "device is cuda:9, but this machine has"),
        ("evaluate RUN data.root=nowhere", "data.root is 'nowhere'"),
        ("evaluate RUN data.rot=nowhere", "unknown key data.rot"),
        ("evaluate RUN data.hierarchy_kind=none", "another hierarchy now than the run was trained on"),
        ("predict RUN nowhere.png --out OUT", "nowhere.png"),
        ("predict RUN TEXT --out OUT", "text.png"),
        ("predict RUN TEXT --out TEXT", "is a file, expected a folder"),
        ("predict RUN IMAGE --out OUT --device gpu", "device is 'gpu'"),
        ("predict RUN IMAGE --out OUT --checkpoint both", "checkpoint is 'both'"),
    ],
)
def test_mistakes_with_a_run(capsys, tmp_path, run_folder, data, arguments, says):
    (tmp_path / "text.png").write_text("this is no image")
    places = {
        "RUN": run_folder,
        "OUT": tmp_path / "out",
        "TEXT": tmp_path / "text.png",
        "IMAGE": data / "images/i0.png",
    }
    code = main([str(places.get(word, word)) for word in arguments.split()])
    captured = capsys.readouterr()
    assert code == 2
    assert says in one_line(captured.err)
    assert captured.out == ""


def test_a_run_is_not_overwritten(said, run_folder, tmp_path):
    err = said("train", config_file(tmp_path), "--out", run_folder, expect=2)
    assert "already holds a run; go on with --resume" in one_line(err)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda root: Image.new("L", (7, 9)).save(root / "masks" / "i1.png"), "i1"),
        (lambda root: (root / "images" / "i1.png").write_text("no image"), "i1.png"),
        (lambda root: Image.new("L", (40, 40), 77).save(root / "masks" / "i1.png"), "ids that stand for no class: 77"),
    ],
    ids=["size of a mask", "unreadable image", "unknown id"],
)
def test_bad_images_are_named(said, tmp_path, data, damage, says, workers):
    root = shutil.copytree(data, tmp_path / "data")
    damage(root)
    path = config_file(tmp_path, data={**on_disk(root), "workers": workers}, train={"steps": 3})
    err = said("train", path, "--out", tmp_path / "run", expect=2)
    assert says in one_line(err)
    shutil.copytree(data, root, dirs_exist_ok=True)  # mended: the run goes on, or begins
    assert said("train", "--resume", tmp_path / "run").startswith("done: ")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda root: (root / "images" / "i0.png").unlink(), "i0"),
        (lambda root: (root / "masks" / "i0.png").unlink(), "'i0' needs a mask\n"),
        (lambda root: (root / "masks" / "i0.png").rename(root / "masks" / "i0.gif"), "(did you mean 'i0.gif'?)"),
        (lambda root: (root / "splits" / "labeled.txt").unlink(), "data.labeled is 'labeled'"),
        (lambda root: (root / "splits" / "labeled.txt").write_text(""), "labeled"),
        (lambda root: (root / "splits" / "train.txt").write_text("i0\ni1\ni2\n"), "data.unlabeled ('rest') names none"),
        (lambda root: (root / "dataset.yaml").unlink(), "dataset.yaml"),
        (lambda root: (root / "dataset.yaml").write_text("classes: [cat\n"), "dataset.yaml"),
        (lambda root: (root / "dataset.yaml").write_text("classes: [cat]\nhierarchy: {animal: [dog]}\n"), "cat"),
    ],
)
def test_bad_data_sets_are_named_before_anything_is_written(said, tmp_path, data, damage, says):
    root = shutil.copytree(data, tmp_path / "data")
    damage(root)
    err = said("train", config_file(tmp_path, data=on_disk(root)), "--out", tmp_path / "run", expect=2)
    assert says in one_line(err) + "\n"
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_written_is_named(said, tmp_path, monkeypatch):
    """A disk that fills up while metrics are written."""
    import logicdiag.engine.trainer as training

    def full(self):
        raise OSError(28, "No space left on device", str(tmp_path / "run" / "metrics.jsonl"))

    monkeypatch.setattr(training.Trainer, "_line", full)
    err = said("train", config_file(tmp_path), "--out", tmp_path / "run", expect=2)
    assert one_line(err) == f"logicdiag: {tmp_path / 'run' / 'metrics.jsonl'}: No space left on device"


def test_a_run_opens_from_anywhere(said, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_run(run_folder).config.data.layout == "folder"
    assert "best" in said("evaluate", run_folder)


def test_the_hierarchy_of_a_data_set(said, tmp_path):
    data = folder_dataset(tmp_path / "data")
    tree = said("hierarchy", "show", data / "dataset.yaml")
    assert tree == said("hierarchy", "show", data)
    assert all(name in tree for name in yaml.safe_load((data / "dataset.yaml").read_text())["classes"])
    (tmp_path / "my.rules").write_text("forall x: ~nothing_like_it(x)\n")
    assert main(["rules", "check", str(tmp_path / "my.rules"), "--hierarchy", str(data / "dataset.yaml")]) == 2
