"""Pseudo labels against hidden masks: counted by hand, held against evaluation, and opened nowhere else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import logicdiag
from logicdiag.cli import main
from logicdiag.data.open import open_dataset, open_hidden
from logicdiag.engine.evaluate import evaluate_model
from logicdiag.engine.load import plain
from logicdiag.engine.run import open_run
from logicdiag.engine.train import train
from logicdiag.errors import DataError, LogicDiagError
from logicdiag.experiment.accuracy import measure_run
from logicdiag.experiment.config import load_experiment
from logicdiag.experiment.grid import expand
from logicdiag.experiment.tally import Tally
from logicdiag.experiment.worker import Job, Snapshots, work

from ..engine.small import config, folder_dataset, on_disk
from ..engine.stand_ins import TREE
from .files import experiment_file

BIRD, CAT, CAR, BUS, SKY = range(5)


def test_counted_by_hand():
    """Ten pixels, one of them unknown; four in conflict, of which repair mends two and spoils one."""
    tally = Tally(TREE)
    truth = [BIRD, BIRD, BIRD, CAT, CAT, CAR, SKY, SKY, SKY, -1]
    before = [BIRD, CAT, BIRD, CAT, BUS, BUS, SKY, CAR, SKY, SKY]
    labels = [BIRD, -1, -1, CAT, -1, -1, SKY, CAR, SKY, SKY]
    after = [BIRD, BIRD, CAT, CAT, CAT, BUS, SKY, CAR, SKY, SKY]
    conflict = [0, 1, 1, 0, 1, 1, 0, 0, 0, 1]
    weight = [1.0, 0.5, 0.25, 1.0, 0.5, 0.25, 1.0, 1.0, 1.0, 1.0]
    for part in (slice(0, 4), slice(4, 10)):  # in two batches
        tally.add(
            torch.tensor(truth)[part],
            torch.tensor(before)[part],
            torch.tensor(after)[part],
            torch.tensor(weight)[part],
            torch.tensor(labels)[part],
            torch.tensor(conflict)[part].bool(),
        )
    found = tally.shares()
    classes = found.pop("classes")
    assert found == {
        "pixels": 9,
        "before": pytest.approx(5 / 9, abs=1e-6),
        "exact_before": pytest.approx(4 / 9, abs=1e-6),
        "after": pytest.approx(6 / 9, abs=1e-6),
        "counted": pytest.approx(6.5 / 9, abs=1e-6),
        "learned": pytest.approx(5 / 6.5, abs=1e-6),
        "conflict": pytest.approx(4 / 9, abs=1e-6),
        "conflict_before": 0.25,
        "conflict_after": 0.5,
        "repaired": 0.5,
        "broken": 0.25,
    }
    bird = classes["bird"]
    assert (bird["pixels"], bird["before"], bird["after"]) == (3, *[pytest.approx(2 / 3, abs=1e-6)] * 2)
    assert (bird["conflict_before"], bird["conflict_after"], bird["precision"]) == (0.5, 0.5, 1.0)
    assert classes["cat"]["precision"] == pytest.approx(1.5 / 1.75, abs=1e-6)
    assert (classes["sky"]["conflict"], classes["sky"]["repaired"]) == (0.0, None)
    assert (classes["bus"]["pixels"], classes["bus"]["before"]) == (0, None)


def test_a_flat_head_has_no_conflict():
    tally = Tally(TREE)
    leaf = torch.tensor([[CAR, SKY]])
    tally.add(leaf, leaf, leaf, torch.zeros(1, 2))
    found = tally.shares()
    assert (found["before"], found["counted"], found["learned"]) == (1.0, 0.0, None)
    assert "conflict" not in found


def small_run(path, **changes):
    """A short run with two snapshots."""
    return train(config(**changes), path, observe=Snapshots(path, (3, 6)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("run") / "run", psi={"weight": "posterior"}).path


def test_every_snapshot(finished):
    found = measure_run(finished, device="cpu")
    assert [moment["step"] for moment in found["moments"]] == [3, 6]
    assert (found["psi"], found["images"], found["of"]) == ("diagnosis", 5, 5)
    run = open_run(finished)
    hidden = open_hidden(run.config.data, run.base)
    for moment in found["moments"]:
        model = run.model(f"snapshots/step-{moment['step']:06d}")
        same = evaluate_model(model, hidden.items, run.hierarchy, run.knowledge)
        assert moment["before"] == pytest.approx(same.accuracy, abs=1e-6)
        assert moment["conflict"] == pytest.approx(same.violations.share, abs=1e-6)
        assert moment["pixels"] == same.pixels
        assert 0 < moment["counted"] <= 1
        assert moment["classes"].keys() == set(run.hierarchy.leaves)
    assert json.loads((finished / "pseudo.json").read_text()) == found


def test_measured_once(finished, monkeypatch):
    first = measure_run(finished, device="cpu", again=True)
    assert measure_run(finished, device="cpu", again=True) == first  # draws are keyed
    with monkeypatch.context() as patch:
        patch.setattr("logicdiag.experiment.accuracy.open_hidden", lambda *_: pytest.fail("measured again"))
        assert measure_run(finished) == first
    some = measure_run(finished, images=2, device="cpu")
    assert (some["images"], some["of"]) == (2, 5)
    assert measure_run(finished, device="cpu") == first


@pytest.mark.parametrize(
    ("changes", "psi"),
    [
        ({"model": {"head": "flat"}, "psi": {"name": "threshold", "threshold": 0.0}}, "threshold"),
        ({"method": {"name": "supervised"}, "model": {"head": "flat"}}, "likeliest"),
        ({"psi": {"families": ""}}, "diagnosis"),
        ({"psi": {"strategy": "soft"}}, "diagnosis"),
    ],
)
def test_every_kind_of_run(tmp_path, changes, psi):
    path = tmp_path / "run"
    small_run(path, **changes)
    found = measure_run(path, device="cpu", forget=True)
    assert found["psi"] == psi
    last = found["moments"][-1]
    if changes.get("model"):
        assert "conflict" not in last
        assert last["after"] == last["before"] == last["learned"]
    elif "families" in changes["psi"]:
        assert last["conflict"] == 0  # no rule, no conflict; labels are as they were
        assert last["after"] == last["exact_before"]
    assert not (path / "snapshots").exists()
    assert measure_run(path) == found


def test_the_last_network_where_there_is_no_snapshot(tmp_path, capsys):
    path = train(config(train={"steps": 2}), tmp_path / "run").path
    assert main(["pseudo", str(path), "--device", "cpu", "--images", "1"]) == 0
    out = capsys.readouterr().out
    assert "step 2" in out
    assert "background" in out
    assert main(["pseudo", str(path), "--images", "0"]) == 2
    assert "--images is 0, expected a whole number of at least 1" in capsys.readouterr().err


# ---- hidden masks ---------------------------------------------------------------------------------------------------


def test_hidden_masks_are_those_of_unlabelled_images(tmp_path):
    root = folder_dataset(tmp_path / "data")
    data = config(data=on_disk(root)).data
    hidden = open_hidden(data)
    assert [item.name for item in hidden.items] == [photo.name for photo in open_dataset(data).unlabeled]
    (root / "masks" / "i4.png").unlink()  # an image that never had one
    assert [item.name for item in open_hidden(data).items] == ["i3", "i5", "i6"]


def test_photos_from_elsewhere_have_no_masks(tmp_path):
    root, other = folder_dataset(tmp_path / "data"), folder_dataset(tmp_path / "other")
    path = train(config(data={**on_disk(root), "unlabeled": str(other / "images")}, train={"steps": 1}), tmp_path / "r")
    with pytest.raises(DataError, match="no unlabelled image .data.unlabeled. has a mask"):
        measure_run(path.path)


def test_nothing_else_opens_hidden_masks():
    """Of all modules, one asks for them."""
    source = Path(logicdiag.__file__).parent
    asking = {
        str(file.relative_to(source)) for file in source.rglob("*.py") if "open_hidden" in file.read_text("utf-8")
    }
    assert asking == {"data/open.py", "experiment/accuracy.py"}


def test_a_cell_never_opens_them_and_accuracy_does(tmp_path):
    """Every file that is opened is noted, by a hook that cannot be taken away."""
    root = folder_dataset(tmp_path / "data")
    settings = config(data=on_disk(root), train={"steps": 2, "val_every": 2})
    job = Job(str(tmp_path / "run"), plain(settings), str(tmp_path), "d", "val", (1,), "all")
    program = f"""
import sys
noted = []
def note(event, args):
    if event == "open" and "/masks/" in str(args[0]):
        noted.append(str(args[0]).rsplit("/", 1)[1])
sys.addaudithook(note)
from logicdiag.experiment.worker import Job, work
from logicdiag.experiment.accuracy import measure_run
work(Job(**{json.loads(job.line())!r}))
print(*sorted(set(noted)))
noted.clear()
measure_run({job.run!r}, device="cpu")
print(*sorted(set(noted)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["i0.png i1.png i2.png i7.png i8.png", "i3.png i4.png i5.png i6.png"]


# ---- of an experiment -----------------------------------------------------------------------------------------------


def test_moved_and_measured(tmp_path, capsys):
    """A run that was done where its data are no more; `keep: results` leaves numbers alone."""
    first = folder_dataset(tmp_path / "there" / "data")
    settings = plain(config(data=on_disk(first), train={"steps": 2}))
    path = experiment_file(tmp_path, base=settings, keep="results", snapshots=1)
    out = tmp_path / "out"
    assert main(["experiment", "accuracy", str(path)]) == 2
    assert "no run of it is done" in capsys.readouterr().err
    e = load_experiment(path)
    [cell] = expand(e)
    run = out / "runs" / cell.run_name
    work(Job(str(run), plain(cell.config), e.folder, e.dataset, None, (2,), "results"))
    assert [file.name for file in run.rglob("*.safetensors")] == ["step-000002.safetensors"]
    assert not (run / "checkpoint.pt").exists()
    (tmp_path / "there").rename(tmp_path / "here")
    assert main(["experiment", "accuracy", str(path)]) == 1
    assert "data.root is" in capsys.readouterr().out
    assert main(["experiment", "accuracy", str(path), f"data.root={tmp_path / 'here' / 'data'}"]) == 0
    assert "1/1 seed0: step 2: right before" in capsys.readouterr().out
    assert not (run / "snapshots").exists()
    assert main(["experiment", "accuracy", str(path), "data.root=nowhere"]) == 0  # measured already
    with pytest.raises(LogicDiagError):
        open_run(run).model("last")
