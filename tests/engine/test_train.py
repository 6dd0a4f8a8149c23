"""A run from its configuration to its folder; and what training refuses, and never looks at."""

import json
import math
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from PIL import Image

from logicdiag.data.dataset import IGNORE
from logicdiag.data.open import open_dataset
from logicdiag.engine.distributed import World
from logicdiag.engine.optimizer import Optimizer
from logicdiag.engine.run import load_checkpoint, open_run, read_metrics
from logicdiag.engine.train import train
from logicdiag.engine.trainer import Trainer
from logicdiag.errors import ConfigError, DataError, LogicDiagError, OptionError, RunError
from logicdiag.methods.build import METHODS
from logicdiag.methods.stpp import ALL, LABELS, RELIABLE

from .small import config, config_file, folder_dataset, on_disk, started


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    return train(config(psi={"rules": ["forall x: ~oak(x)"]}, method={"teacher_decay": 0.5}), out)


def test_the_run_folder_has_everything(finished):
    names = {path.name for path in finished.path.iterdir()}
    assert names == {
        "config.yaml",
        "hierarchy.yaml",
        "record.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoint.pt",
        "last.safetensors",
        "best.safetensors",
    }
    assert list((finished.path / "tensorboard").iterdir())
    record = json.loads((finished.path / "record.json").read_text())
    assert record["images"] == {"labeled": 4, "unlabeled": 5, "val": 2}
    assert record["versions"]["torch"] == torch.__version__
    assert record["lists"]["labeled"]["count"] == 4
    assert len(record["lists"]["unlabeled"]["fingerprint"]) == 64
    assert (record["processes"], record["seed"]) == (1, 0)
    again = open_run(finished.path)
    assert again.config == config(psi={"rules": ["forall x: ~oak(x)"]}, method={"teacher_decay": 0.5})
    assert [rule.name for rule in again.knowledge.rules] == ["forall x: ~oak(x)"]


def test_metrics(finished):
    lines = read_metrics(finished.path)
    steps = [(line["step"], "val/miou" in line) for line in lines]
    assert steps == [(2, False), (3, True), (4, False), (6, False), (6, True)]
    first = lines[0]
    assert first.keys() == {"step", "loss", "loss/labeled", "loss/unlabeled", "conflict", "counted", "lr"}
    assert first["loss"] == pytest.approx(first["loss/labeled"] + 5 * first["loss/unlabeled"])
    assert 0 < first["conflict"] <= 1
    assert first["counted"] == 1
    assert {"val/miou_level1", "val/miou_level3", "val/accuracy", "val/severity", "val/violations"} <= lines[1].keys()
    rates = [line["lr"] for line in lines if "lr" in line]
    assert rates == pytest.approx([0.0025 * (1 - step / 6) ** 0.9 for step in (1, 3, 5)])


def test_networks_of_a_run(finished):
    state = load_checkpoint(finished.path, "cpu")
    assert state["done"] == 6
    assert state["best"]["step"] in (3, 6)
    last = finished.model("last")
    assert not last.training
    teacher = state["method"]["teachers"][0]
    for key, value in last.state_dict().items():
        assert torch.equal(value, teacher[f"model.{key}"]), key
    best = finished.model("best").state_dict()
    equal = all(torch.equal(value, best[key]) for key, value in last.state_dict().items())
    assert equal == (state["best"]["step"] == 6)


def test_it_learns(tmp_path):
    """Forty steps on four scenes: the labelled loss falls by far."""
    run = train(
        config(
            method={"name": "supervised"},
            optimizer={"lr": 0.02},
            data={"scale": [1.0, 1.0], "crop": 40, "val": None},
            train={"steps": 40, "log_every": 5, "labeled_batch": 4},
        ),
        tmp_path / "run",
    )
    losses = [line["loss"] for line in read_metrics(run.path)]
    assert losses[-1] < 0.6 * losses[0]
    assert not (run.path / "best.safetensors").exists()


def test_the_same_seed_is_the_same_run_and_another_is_not(tmp_path):
    seeds = {"a": 3, "b": 3, "c": 4}
    runs = [train(config(train={"steps": 2, "seed": seed}), tmp_path / name) for name, seed in seeds.items()]
    texts = [(run.path / "metrics.jsonl").read_text() for run in runs]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(tmp_path, precision):
    run = train(config(train={"precision": precision, "steps": 2}, optimizer={"clip": 1.0}), tmp_path / "run")
    lines = read_metrics(run.path)
    assert all(math.isfinite(line["loss"]) for line in lines if "loss" in line)
    exact = train(config(train={"steps": 2}, optimizer={"clip": 1.0}), tmp_path / "exact")
    assert read_metrics(exact.path)[0]["loss"] == pytest.approx(lines[0]["loss"], rel=0.1)


def test_adamw_warmup_and_clip(tmp_path):
    run = train(
        config(optimizer={"name": "adamw", "warmup": 4, "clip": 0.1}, train={"steps": 4, "log_every": 1}),
        tmp_path / "run",
    )
    rates = [line["lr"] for line in read_metrics(run.path) if "lr" in line]
    assert rates == pytest.approx([0.0025 * (1 - s / 4) ** 0.9 * (s + 1) / 4 for s in range(4)])


def test_rare_classes_weigh_more_by_the_labelled_masks():
    made = trainer(loss={"balance": 0.5})
    masks = np.stack([item.mask() for item in made.dataset.labeled])
    counts = np.bincount(masks[masks != IGNORE].ravel(), minlength=len(made.dataset.hierarchy.leaves))
    rarest, commonest = np.where(counts > 0, counts, counts.max()).argmin(), counts.argmax()
    ratio = (counts[commonest] / counts[rarest]) ** 0.5
    assert ratio > 1
    assert float(made.method.loss.weights[rarest] / made.method.loss.weights[commonest]) == pytest.approx(ratio)
    assert trainer().method.loss.weights is None


def test_teachers_of_short_runs_average_over_less():
    assert trainer(train={"steps": 600}).method.teacher.decay == pytest.approx(0.975)
    assert trainer(train={"steps": 40000}).method.teacher.decay == pytest.approx(0.996)


def test_classes_may_be_drawn_instead_of_images(tmp_path):
    """Labelled views alone are others."""
    changes = {"data": {"sampling": "classes"}}
    made = trainer(**changes)
    assert set(made.shown) == {int(leaf) for i in made.dataset.labeled for leaf in np.unique(i.mask())}
    with ExitStack() as ours, ExitStack() as others:
        ((labeled, unlabeled),) = next(made._batches(ours))
        ((plain, same),) = next(trainer()._batches(others))
    assert not torch.equal(labeled.image, plain.image)
    assert torch.equal(unlabeled.image, same.image)
    whole = train(config(**changes), tmp_path / "whole")
    assert read_metrics(whole.path)[0]["loss"] != read_metrics(train(config(), tmp_path / "plain").path)[0]["loss"]


def test_rates_of_encoder_and_decoder():
    made = trainer()
    made.optimizer.step(3, {})
    rates = {group["name"]: group["lr"] for group in made.optimizer.inner.param_groups}
    assert rates["decoder"] == pytest.approx(10 * rates["encoder"])
    assert rates["encoder"] == pytest.approx(0.0025 * 0.5**0.9)


def trainer(path=None, **changes):
    c = config(**changes)
    return Trainer(c, open_dataset(c.data), World(), path, path)


def test_accumulated_parts_count_as_one_batch():
    """The same views and the same denominators; batch norm alone sees other batches."""
    found = []
    for accumulate in (1, 2):
        made = trainer(
            train={"labeled_batch": 4, "unlabeled_batch": 4, "accumulate": accumulate},
            psi={"name": "threshold", "threshold": 0.0},
        )
        made.model.eval()  # no batch norm in the way
        with ExitStack() as stack:
            batches = next(made._batches(stack))
        assert len(batches) == accumulate
        counts = [float(count) for count in made.stepper.pixels(batches)]
        made._step(batches)
        line = made._line()
        images = torch.cat([unlabeled.image for _, unlabeled in batches])
        found.append((counts, line["loss/labeled"], images, [p.clone() for p in made.model.parameters()]))
    (counts, loss, images, weights), (other_counts, other_loss, other_images, other_weights) = found
    assert counts == other_counts
    assert torch.equal(images, other_images)
    assert loss == pytest.approx(other_loss, rel=1e-5)
    for one, other in zip(weights, other_weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_denominators_leave_out_what_is_ignored():
    made = trainer(data={"crop": 64, "scale": [0.5, 0.6]})  # views smaller than the crop are padded
    with ExitStack() as stack:
        ((labeled, unlabeled),) = next(made._batches(stack))
    counts = [int(count) for count in made.stepper.pixels([(labeled, unlabeled)])]
    assert counts == [int((labeled.leaf >= 0).sum()), int(unlabeled.valid.sum())]
    assert 0 < counts[0] < 2 * 64 * 64 / 2


def test_labels_are_never_all_ignored_away(tmp_path):
    """Masks without a single counted pixel: a loss of 0, and no division by 0."""
    root = folder_dataset(tmp_path / "data")
    for number in range(3):
        Image.new("L", (40, 40), 255).save(root / "masks" / f"i{number}.png")
    run = train(config(data=on_disk(root), train={"steps": 2}, method={"name": "supervised"}), tmp_path / "run")
    assert read_metrics(run.path)[0]["loss"] == 0


def test_validation_without_a_counted_pixel_is_no_best(tmp_path):
    root = folder_dataset(tmp_path / "data")
    for number in (7, 8):
        Image.new("L", (40, 40), 255).save(root / "masks" / f"i{number}.png")
    run = train(config(data=on_disk(root), train={"steps": 2, "val_every": 1}), tmp_path / "run")
    assert not (run.path / "best.safetensors").exists()

    def strict(name):
        raise ValueError(name)

    for line in (run.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=strict)  # NaN is no JSON


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"method": {"name": "fixmach"}}, OptionError, "method.name is 'fixmach'.*did you mean 'fixmatch'"),
        ({"train": {"precision": "fp8"}}, OptionError, "train.precision is 'fp8'"),
        ({"train": {"steps": 0}}, ConfigError, "train.steps is 0, expected a whole number of at least 1"),
        ({"train": {"val_every": 0}}, ConfigError, "train.val_every is 0"),
        ({"train": {"seed": -1}}, ConfigError, "train.seed is -1, expected 0 or more"),
        ({"train": {"seed": 2**64}}, ConfigError, "train.seed is 18446744073709551616"),
        ({"train": {"accumulate": 3}}, ConfigError, "train.labeled_batch is 2, expected a multiple of 3"),
        ({"train": {"device": "gpu"}}, ConfigError, "train.device is 'gpu', expected auto, cpu, cuda"),
        ({"train": {"device": "meta"}}, ConfigError, "train.device is 'meta', expected auto, cpu, cuda"),
        ({"method": {"weight": -1}}, ConfigError, "method.weight is -1.0, expected 0 or more"),
        ({"method": {"ramp": [0.5, 0.1]}}, ConfigError, "method.ramp"),
        ({"method": {"teacher_decay": 2}}, ConfigError, "method.teacher_decay is 2.0"),
        ({"data": {"unlabeled": None}}, ConfigError, "data.unlabeled .None. names none; add some, or set method.name"),
        ({"data": {"crop": 16}}, ConfigError, "data.crop is 16, expected at least 32"),
        ({"data": {"scale": [2, 1]}}, ConfigError, "data.scale is"),
        ({"data": {"workers": -1}}, ConfigError, "data.workers is -1, expected 0 or more"),
        ({"data": {"flip": 3}}, ConfigError, "data.flip is 3.0, expected a probability from 0 to 1"),
        ({"data": {"views": {"cutmix": -1}}}, ConfigError, "data.views.cutmix is -1.0, expected a probability"),
        ({"data": {"views": {"brightness": -1}}}, ConfigError, "data.views.brightness is -1.0, expected 0 or more"),
        ({"data": {"layout": "scene"}}, OptionError, "did you mean 'scenes'"),
        ({"data": {"layout": "folder", "root": "/nowhere"}}, DataError, "data.root is '/nowhere'"),
        ({"model": {"head": "flat"}}, ConfigError, "psi.name is diagnosis.*model.head is flat"),
        ({"model": {"encoder": "smal"}}, LogicDiagError, "smal"),
        ({"model": {"output_stride": 5}}, LogicDiagError, "5"),
        ({"model": {"weights": "nowhere.pth"}}, LogicDiagError, "nowhere.pth"),
        ({"loss": {"points": 0}}, ConfigError, "loss.points is 0"),
        ({"loss": {"balance": 2}}, ConfigError, "loss.balance is 2.0, expected a number from 0 to 1"),
        ({"data": {"sampling": "clases"}}, OptionError, "data.sampling is 'clases', .* .did you mean 'classes'"),
        ({"optimizer": {"name": "sdg"}}, OptionError, "did you mean 'sgd'"),
        ({"optimizer": {"lr": 0}}, ConfigError, "optimizer.lr is 0.0, expected a number above 0"),
        ({"optimizer": {"momentum": -1}}, ConfigError, "optimizer.momentum is -1.0, expected 0 or more"),
        ({"optimizer": {"weight_decay": -1}}, ConfigError, "optimizer.weight_decay"),
        ({"optimizer": {"warmup": -1}}, ConfigError, "optimizer.warmup"),
        ({"optimizer": {"clip": 0}}, ConfigError, "optimizer.clip is 0.0, expected a number above 0"),
        ({"psi": {"rules": "nowhere.rules"}}, LogicDiagError, "nowhere.rules"),
        (
            {"model": {"head": "flat", "decision": "path"}, "psi": {"name": "threshold"}},
            ConfigError,
            "model.decision is path, .* but model.head is flat",
        ),
        ({"psi": {"families": "CDF"}}, OptionError, "psi.families is 'CDF': 'F' is not one of"),
        ({"psi": {"q": 0}}, OptionError, "psi.q is 0.0, expected a number from 1"),
        ({"model": {"encoder": "smal"}}, OptionError, "did you mean 'small'"),
        (
            {"model": {"head": "flat", "decision": "tree"}, "psi": {"name": "threshold"}},
            ConfigError,
            "model.decision is tree, .* but model.head is flat",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(tmp_path, changes, error, says):
    with pytest.raises(error, match=says):
        train(config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "psi"), [("supervised", "diagnosis"), ("fixmatch", "diagnosis"), ("fixmatch", "threshold")]
)
@pytest.mark.parametrize(
    ("part", "changes", "says"),
    [
        ("psi", {"name": "tresholt"}, "psi.name is 'tresholt', .* .did you mean 'threshold'"),
        ("psi", {"strategy": "gredy"}, "psi.strategy is 'gredy', .* .did you mean 'greedy'"),
        ("psi", {"weight": "on"}, "psi.weight is 'on', .* .did you mean 'one'"),
        ("psi", {"threshold": 7}, "psi.threshold is 7.0, expected a number from 0 to 1$"),
        ("psi", {"levels": -1}, "psi.levels is -1.0, expected a number from 0 to 1, or null"),
        ("psi", {"root": "fre"}, "psi.root is 'fre', .* .did you mean 'free'"),
        ("psi", {"connectives": "papr"}, "psi.connectives is 'papr', .* .did you mean 'paper'"),
        ("psi", {"quantifier": "men"}, "psi.quantifier is 'men', .* .did you mean 'mean'"),
        ("method", {"feature_dropout": 3}, "method.feature_dropout is 3.0, expected from 0 to below 1"),
        ("method", {"u2pl": {"weight": -1}}, "method.u2pl.weight is -1.0, expected 0 or more"),
        ("method", {"ael": {"paste": 2}}, "method.ael.paste is 2.0, expected a number from 0 to 1"),
        ("method", {"stages": {"snapshots": 1}}, "method.stages.snapshots is 1, expected a whole number of at least 2"),
    ],
)
def test_what_nobody_asks_for_must_make_sense_too(tmp_path, method, psi, part, changes, says):
    """It would be asked for by another method or psi."""
    parts = {"method": {"name": method}, "psi": {"name": psi}}
    parts[part] |= changes
    with pytest.raises(LogicDiagError, match=says):
        train(config(**parts), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_supervised_training_takes_what_others_refuse(tmp_path):
    changes = {"method": {"name": "supervised"}, "model": {"head": "flat"}, "data": {"unlabeled": None}}
    run = train(config(**changes, train={"steps": 1, "unlabeled_batch": 3, "accumulate": 2}), tmp_path / "run")
    assert read_metrics(run.path)[0].keys() == {"step", "loss", "loss/labeled", "lr"}


def test_a_run_is_not_overwritten(finished, tmp_path):
    before = {path: path.read_bytes() for path in finished.path.iterdir() if path.is_file()}
    with pytest.raises(RunError, match="already holds a run; go on with --resume"):
        train(config(), finished.path)
    assert before == {path: path.read_bytes() for path in finished.path.iterdir() if path.is_file()}
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file, expected a folder"):
        train(config(), tmp_path / "file")


# ---- divergence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("psi", ["diagnosis", "threshold"])
def test_a_network_that_diverges_ends_the_run_and_keeps_the_checkpoint_from_before(tmp_path, monkeypatch, psi):
    inner = Optimizer.step

    def step(self, index, plan):
        inner(self, index, plan)
        if index == 2:
            self.parameters[0].data.fill_(torch.nan)

    monkeypatch.setattr(Optimizer, "step", step)
    with pytest.raises(RunError, match="step [34]: the network has diverged.*try a lower optimizer.lr"):
        train(config(psi={"name": psi}, train={"steps": 9, "save_every": 2, "val_every": 4}), tmp_path / "run")
    state = load_checkpoint(tmp_path / "run", "cpu")
    assert state["done"] == 2
    assert all(value.isfinite().all() for value in state["model"].values())


# ---- masks of unlabelled images -------------------------------------------------------------------------------------


MASKS = {f"masks/i{number}.png" for number in (0, 1, 2, 7, 8)}
"""Of labelled and validation images."""
UNLABELLED = {f"images/i{number}.png" for number in range(3, 7)}


def without_masks(root):
    """A data set whose unlabelled images have masks that nobody could read."""
    folder_dataset(root)
    for number in range(3, 7):
        (root / "masks" / f"i{number}.png").write_bytes(b"this is no image")
    return on_disk(root)


@pytest.fixture(scope="module")
def opened():
    """The files that are opened, by a hook that cannot be taken away, only told to be silent."""
    files, listening = [], [True]
    sys.addaudithook(lambda event, args: files.append(str(args[0])) if listening and event == "open" else None)
    yield files
    listening.clear()


@pytest.mark.parametrize("method", METHODS)
def test_masks_of_unlabelled_images_are_never_opened(tmp_path, opened, method):
    """In six steps st++ has all of its stages, and ranks the unlabelled images before the second."""
    data, stages = {**without_masks(tmp_path / "data"), "cache": False}, set()  # which would ask all for their size
    opened.clear()
    train(
        config(data=data, method={"name": method, "u2pl": {"ranks": [1, 3]}}, train={"log_every": 6, "val_every": 6}),
        tmp_path / "run",
        observe=lambda trainer: stages.add(getattr(trainer.method, "stage", None)),
    )
    names = {name.rsplit("/data/")[1] for name in opened if name.startswith(f"{tmp_path}/data/")}
    assert {name for name in names if name.startswith("masks/")} == MASKS
    assert bool(names & UNLABELLED) == METHODS[method].needs_unlabeled
    if method == "st++":
        assert stages == {LABELS, RELIABLE, ALL}
        assert names >= UNLABELLED


def test_masks_of_unlabelled_images_are_never_opened_by_workers(tmp_path):
    """They inherit the hook of the process that starts them."""
    data = {**without_masks(tmp_path / "data"), "workers": 2}
    path = config_file(tmp_path, data=data, method={"name": "unimatch"}, train={"steps": 4})
    program = f"""
import sys
def note(event, args):
    if event == "open" and "/masks/" in str(args[0]) or event == "open" and "/images/" in str(args[0]):
        with open({str(tmp_path / "opened.txt")!r}, "a") as file:
            file.write(str(args[0]) + "\\n")
sys.addaudithook(note)
from logicdiag.cli import main
sys.exit(main(["train", {str(path)!r}, "--out", {str(tmp_path / "run")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    opened = {line.rsplit("/data/")[1] for line in (tmp_path / "opened.txt").read_text().splitlines()}
    assert {name for name in opened if name.startswith("masks/")} == MASKS
    assert UNLABELLED & opened


def test_unlabelled_items_have_no_mask_to_open(tmp_path):
    root = folder_dataset(tmp_path / "data")
    made = trainer(data=on_disk(root))
    assert len(made.dataset.unlabeled) == 4
    assert not any(hasattr(item, "mask") or hasattr(item, "labels") for item in made.dataset.unlabeled)


def test_a_process_of_its_own(tmp_path):
    path = config_file(tmp_path, train={"steps": 1})
    process = started("train", path, "--out", tmp_path / "run")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out == f"done: {tmp_path / 'run'}; next: logicdiag evaluate {tmp_path / 'run'}\n"
    assert "step 1: validation mIoU" in err
    assert "Traceback" not in err


def test_an_option_that_the_method_does_not_hear_is_told_of(tmp_path, capsys):
    train(config(method={"name": "supervised", "u2pl": {"weight": 0.5}}), tmp_path / "run")
    told = "warning: method.u2pl.weight is 0.5, but u2pl alone looks at it, and method.name is supervised"
    assert told in capsys.readouterr().err.splitlines()
