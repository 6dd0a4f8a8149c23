"""Models and runs held against masks."""

import io
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

import logicdiag as ld
from logicdiag.cli import main
from logicdiag.data.dataset import ListRecord, Split
from logicdiag.data.lists import fingerprint
from logicdiag.engine import evaluate
from logicdiag.engine.evaluate import evaluate_model, evaluate_run
from logicdiag.engine.evaluation import render
from logicdiag.engine.inference import InferenceConfig
from logicdiag.engine.metrics import Confusion
from logicdiag.engine.train import train
from tests.engine.small import config, folder_dataset, on_disk
from tests.engine.stand_ins import TREE, Echo, Item, Run, items

KB = ld.KnowledgeBase(TREE)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run folder that opens as the stand-in; options may be changed before."""
    opened = Run()
    monkeypatch.setattr("logicdiag.engine.run.open_run", lambda path, overrides: opened)
    opened.path = opened.base = tmp_path
    opened.config.data = SimpleNamespace(val="val")

    def open_split(config, base, split):
        data = opened.dataset()
        if split is None:
            return Split(data.hierarchy, data.val, data.lists["val"])
        return Split(data.hierarchy, data.split(split), ListRecord(split, 2, "1" * 64))

    monkeypatch.setattr(evaluate, "open_split", open_split)
    return opened


@pytest.mark.parametrize("head", ["hierarchical", "flat"])
@pytest.mark.parametrize("budget", [1, 10_000, 1 << 20])
def test_all_pixels_are_in_one_matrix(head, budget, monkeypatch):
    monkeypatch.setattr(evaluate, "BATCH_PIXELS", budget)
    some = (*items(3, seed=1, size=(40, 40)), *items(4))
    confusion = Confusion(TREE)
    for item in some:
        confusion.add(torch.from_numpy(item.shown), torch.from_numpy(item.truth))
    seen = []
    found = evaluate_model(Echo(head=head), some, TREE, KB, progress=lambda *now: seen.append(now), workers=1)
    assert [level.miou for level in found.levels] == [confusion.miou(1), confusion.miou(2)]
    assert found.miou == confusion.miou() < 0.8
    assert found.levels[0].classes == dict(zip(TREE.levels[0], confusion.iou(1).tolist(), strict=True))
    assert (found.accuracy, found.severity) == (confusion.accuracy(), confusion.severity())
    assert (found.images, found.pixels) == (7, sum(int((i.truth != 255).sum()) for i in some))
    assert seen[-1] == ("evaluation", 7, 7)
    assert (found.violations is None) == (head == "flat")


def test_images_of_one_size_go_together():
    """Of a window of 64; no batch is above its pixels."""
    sizes = [(40, 40), (40, 30)] * 40
    found = list(evaluate.together(enumerate(sizes), lambda one: one[1]))
    assert sorted(number for batch in found for number, _ in batch) == list(range(80))
    assert [len(batch) for batch in found] == [32, 32, 8, 8]
    assert all(len({size for _, size in batch}) == 1 for batch in found)


def test_violations_are_of_the_pixels_that_count():
    """A model that says animal only where it says bird: cats break C in half of the counted pixels."""
    truth = np.array([[0, 1], [255, 255]], np.uint8).repeat(20, 0).repeat(20, 1)
    model = Echo()
    forward = model.forward

    def without_animal(image):
        logits = forward(image)
        logits[:, 0] = torch.where(logits[:, 1] > 0, 4.0, -4.0)
        return logits

    model.forward = without_animal
    shown = np.array([[0, 1], [1, 1]], np.uint8).repeat(20, 0).repeat(20, 1)
    found = evaluate_model(model, [Item("a", truth, shown)], TREE, KB)
    assert found.violations.share == 0.5
    assert found.violations.rules == {"C": 0.5, "D": 0.5, "E": 0.0}  # no top-level class is true: D of the root


def test_the_mode_of_the_model_is_left_as_it_was():
    for training in (True, False):
        model = Echo().train(training)
        evaluate_model(model, items(1), TREE, KB)
        assert model.training == training


def test_wrong_masks_are_named():
    wrong = Item("a", np.full((40, 40), 7, np.uint8))
    with pytest.raises(ld.LogicDiagError, match=r"a: a pixel has class 7 in the mask"):
        evaluate_model(Echo(), [wrong], TREE, KB)
    small = Item("b", np.zeros((40, 40), np.uint8), np.zeros((40, 50), np.uint8))
    with pytest.raises(ld.LogicDiagError, match=r"b: the image is 50 x 40, the mask 40 x 40"):
        evaluate_model(Echo(), [small], TREE, KB)
    with pytest.raises(ld.LogicDiagError, match="no image to evaluate on"):
        evaluate_model(Echo(), [], TREE, KB)


def worker(rank, world, folder, count, broken):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    some = list(items(count))
    if broken:
        some[1] = Item("broken", np.full((40, 40), 9, np.uint8))
    try:
        text = json.dumps(evaluate_model(Echo(), some, TREE, KB, rank=rank, world=world).to_dict())
    except ld.LogicDiagError as error:
        text = str(error)
    (folder / f"{rank}.txt").write_text(text)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("count", "broken"), [(5, False), (1, False), (4, True)])
def test_ranks_share_the_work_and_the_result(tmp_path, count, broken):
    torch.multiprocessing.spawn(worker, (2, tmp_path, count, broken), nprocs=2)
    texts = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    if broken:
        assert texts[0] == "the evaluation failed in another process, which says why"
        assert texts[1].startswith("broken: a pixel has class 9")
    else:
        alone = evaluate_model(Echo(), items(count), TREE, KB).to_dict()
        assert [json.loads(text) for text in texts] == [alone, alone]


def test_json_has_the_documented_keys():
    never = Item("a", np.zeros((40, 40), np.uint8))
    found = evaluate_model(Echo(), [never], TREE, KB).to_dict()
    json.dumps(found, allow_nan=False)
    assert found == {
        "checkpoint": None,
        "split": None,
        "list": None,
        "labeled": None,
        "hierarchy": "hierarchy",
        "images": 1,
        "pixels": 1600,
        "miou": 1.0,
        "miou_parents": 1.0,
        "levels": [
            {"level": 1, "miou": 1.0, "classes": {"animal": 1.0, "vehicle": None, "sky": None}},
            {"level": 2, "miou": 1.0, "classes": {"bird": 1.0, "cat": None, "car": None, "bus": None, "sky": None}},
        ],
        "accuracy": 1.0,
        "severity": {"mean": None, "shares": {}},
        "violations": {"share": 0.0, "rules": {"C": 0.0, "D": 0.0, "E": 0.0}},
    }


def test_siblings_that_are_never_confused():
    """Of 16 rows of cats four are taken for birds and one for a car: animal is right in 15 rows, vehicle in none."""
    bird, cat, car = (TREE.leaves.index(name) for name in ("bird", "cat", "car"))
    truth = np.full((16, 40), cat, np.uint8)
    shown = truth.copy()
    shown[:4], shown[4] = bird, car
    found = evaluate_model(Echo(), [Item("a", truth, shown), Item("b", np.full((4, 40), 4, np.uint8))], TREE, KB)
    assert found.miou == pytest.approx((0 + 11 / 16 + 0 + 1) / 4)
    assert found.miou_parents == pytest.approx((15 / 16 + 15 / 16 + 0 + 1) / 4)


def test_a_run_is_evaluated_at_both_checkpoints(run):
    results = evaluate_run(run.path)
    assert list(results) == ["last", "best"]
    assert results["best"].miou > results["last"].miou
    written = json.loads((run.path / "evaluation-val.json").read_text())
    assert written["inference"] == {"mode": "whole", "size": None, "stride": None}
    assert written["checkpoints"] == {name: result.to_dict() for name, result in results.items()}
    assert written["checkpoints"]["best"]["checkpoint"] == "best"
    assert written["checkpoints"]["best"]["list"]["known"] == "a published list"
    assert [p.name for p in run.path.iterdir()] == ["evaluation-val.json"]


def test_one_checkpoint_and_another_split(run):
    results = evaluate_run(run.path, split="lists/test.txt", checkpoint="best", inference=InferenceConfig("slide", 32))
    assert list(results) == ["best"]
    assert results["best"].split == "lists/test.txt"
    assert results["best"].list.count == results["best"].images == 2
    written = json.loads((run.path / "evaluation-test.json").read_text())
    assert written["inference"]["size"] == 32


def test_a_name_is_that_split_and_not_the_run_s_validation_list(tmp_path, capsys):
    """Trained with data.val=test: by default on test's images, with --split val on val's."""
    root = folder_dataset(tmp_path / "data")
    for kind in ("images", "masks"):
        shutil.copy(root / kind / "i7.png", root / kind / "t.png")
    (root / "splits/test.txt").write_text("t\n")
    settings = config(data={**on_disk(root), "val": "test"}, train={"steps": 1, "val_every": None})
    train(settings, tmp_path / "run")
    found = {split: evaluate_run(tmp_path / "run", split, "last")["last"] for split in (None, "val", "test")}
    assert [(e.split, e.images) for e in found.values()] == [("val", 1), ("val", 2), ("test", 1)]
    assert found[None].list.fingerprint == found["test"].list.fingerprint == fingerprint(["t"])
    assert found["val"].list.fingerprint == fingerprint(["i7", "i8"])
    for split, name in ((None, "val"), ("val", "split-val"), ("test", "test")):
        written = json.loads((tmp_path / f"run/evaluation-{name}.json").read_text())
        assert written["checkpoints"]["last"] == found[split].to_dict()
        options = [] if split is None else ["--split", split]
        assert main(["evaluate", str(tmp_path / "run"), "--checkpoint", "last", *options]) == 0
        assert f"written: {tmp_path / 'run' / f'evaluation-{name}.json'}\n" in capsys.readouterr().out


def test_what_was_trained_on_may_be_gone(tmp_path):
    root = folder_dataset(tmp_path / "data", unlabeled=0)
    shutil.copytree(root / "images", tmp_path / "photos", ignore=shutil.ignore_patterns("i3.png", "i4.png"))
    (root / "splits/test.txt").write_text("i4\n")
    settings = config(data={**on_disk(root), "unlabeled": str(tmp_path / "photos")}, train={"steps": 1})
    train(settings, tmp_path / "run")
    before = [evaluate_run(tmp_path / "run", split, "last")["last"].to_dict() for split in (None, "test")]
    shutil.rmtree(tmp_path / "photos")
    (root / "splits/labeled.txt").unlink()
    for name in ("i0", "i1", "i2"):
        (root / f"images/{name}.png").unlink()
        (root / f"masks/{name}.png").unlink()
    after = [evaluate_run(tmp_path / "run", split, "last")["last"].to_dict() for split in (None, "test")]
    assert after == before
    assert after[1]["list"]["source"] == str(root / "splits/test.txt")
    (root / "images/i3.png").unlink()  # of val alone
    assert evaluate_run(tmp_path / "run", "test", "last")["last"].to_dict() == before[1]
    with pytest.raises(ld.LogicDiagError, match="there is no image 'i3'"):
        evaluate_run(tmp_path / "run")


def test_a_run_without_a_best_checkpoint(run):
    run.best = False
    assert list(evaluate_run(run.path)) == ["last"]
    with pytest.raises(ld.LogicDiagError, match="no best checkpoint"):
        evaluate_run(run.path, checkpoint="best")
    with pytest.raises(ld.LogicDiagError, match="checkpoint is 'bset', expected one of both, last, best.*'best'"):
        evaluate_run(run.path, checkpoint="bset")


def test_a_checkpoint_that_is_there_and_cannot_be_read_is_not_passed_over(run):
    run.best = False
    (run.path / "best.safetensors").write_text("nonsense")
    with pytest.raises(ld.LogicDiagError, match="no best checkpoint"):
        evaluate_run(run.path)


def test_another_hierarchy_than_that_of_the_training(run):
    run.hierarchy = ld.Hierarchy.from_dict({"animal": ["cat", "bird"], "vehicle": ["car", "bus"], "sky": None})
    with pytest.raises(ld.LogicDiagError, match="another hierarchy now"):
        evaluate_run(run.path)


def test_a_run_without_validation(run):
    run.val = 0
    with pytest.raises(ld.LogicDiagError, match=r"no validation images \(data.val\); name a split"):
        evaluate_run(run.path)
    assert evaluate_run(run.path, split="test")["last"].images == 2


def test_tables_show_levels_and_classes(run):
    console = Console(width=100, file=io.StringIO())
    console.print(render(list(evaluate_run(run.path).values())))
    text = console.file.getvalue()
    for part in ("3 images of val (a published list)", "mIoU, level 1 (3 classes)", "mIoU, leaves (5 classes)"):
        assert part in text
    for part in ("last", "best", "violations", "mistake severity (no %, 1 to 2)", "  bird", "animal"):
        assert part in text
