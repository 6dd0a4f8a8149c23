"""The report: a whole page without a network, whose numbers are those of the evaluation."""

import base64
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import logicdiag.data.open as opening
from logicdiag.cli import main
from logicdiag.engine.evaluate import evaluate_run
from logicdiag.engine.run import open_run
from logicdiag.engine.train import train
from logicdiag.report import measure as measuring
from logicdiag.report.look import Viewer, truth_of, validation
from logicdiag.report.measure import measure
from logicdiag.report.page import write_report
from logicdiag.report.told import Told, short_names

from ..engine.small import config

VOID = {"meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Every element must be closed in turn; tables, images and text are kept."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.tables, self.ids = [], [], {}, []
        self.text = ""
        self._table = self._cell = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes, tuple(self.open)))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = []
        if tag == "tr":
            self._table.append([])
        if tag in ("th", "td", "caption"):
            self._cell = ""

    def handle_startendtag(self, tag, attrs):
        assert "svg" in self.open, tag  # HTML has no self-closing elements
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("th", "td"):
            self._table[-1].append(self._cell)
        if tag == "caption":
            self._caption = self._cell
        if tag == "table":
            self.tables.setdefault(self._caption, []).append(self._table)

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data
        if self.open and self.open[-1] != "style":
            self.text += data

    def all(self, tag):
        return [(attributes, inside) for name, attributes, inside in self.elements if name == tag]

    def rows(self, caption, number=0):
        """First cell -> the others, of a table."""
        _, *rows = self.tables[caption][number]
        return {row[0].strip(): row[1:] for row in rows}


@pytest.fixture(scope="session")
def written(run, flat_run, tmp_path_factory):
    return write_report([run.path, flat_run.path], tmp_path_factory.mktemp("page") / "report.html", device="cpu")


@pytest.fixture(scope="session")
def page(written):
    return Page(written.read_text("utf-8"))


@pytest.fixture(scope="session")
def evaluated(run):
    return evaluate_run(run.path, device="cpu")


# ---- the file --------------------------------------------------------------------------------------------------------


def test_it_needs_no_network(written, page):
    text = written.read_text("utf-8")
    assert not re.search(r"https?:|[\"'(]//|@import|url\(", text)
    assert not page.all("script")
    assert not page.all("link")
    for attributes, _ in page.all("img"):
        assert attributes["src"].startswith(("data:image/png;base64,", "data:image/jpeg;base64,"))
    for attributes, _ in page.all("a"):
        assert attributes["href"].removeprefix("#") in page.ids
    assert written.stat().st_size < 1_500_000


def test_it_can_be_read_without_eyes_or_mouse(page):
    assert ("html", {"lang": "en"}, ()) in page.elements
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.ids) == len(set(page.ids))
    for attributes, _ in page.all("img"):
        assert len(attributes["alt"]) > 4
    charts = [attributes for attributes, _ in page.all("svg") if attributes.get("role") == "img"]
    assert len(charts) >= 9
    for attributes in charts:
        assert set(attributes["aria-labelledby"].split()) <= set(page.ids)
    assert all(a.get("aria-hidden") == "true" for a, _ in page.all("svg") if a.get("role") != "img")
    for attributes, inside in page.all("th"):
        assert attributes["scope"] == ("col" if "thead" in inside else "row")
    assert len(page.all("caption")) == len(page.all("table"))
    for attributes, _ in page.all("div"):
        if attributes.get("class") == "scroll":
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]
    style = Path(measuring.__file__).with_name("page.css").read_text()
    assert "prefers-color-scheme: dark" in style
    assert "focus-visible" in style
    assert "@media print" in style


def test_pictures_are_small_and_of_their_size(page):
    for attributes, _ in page.all("img"):
        data = base64.b64decode(attributes["src"].partition(",")[2])
        image = Image.open(io.BytesIO(data))
        assert image.size == (int(attributes["width"]), int(attributes["height"]))
        assert len(data) < 20_000


# ---- its numbers -----------------------------------------------------------------------------------------------------


def shown(share, digits=2):
    return f"{100 * share:.{digits}f}"


def test_the_summary_is_the_evaluation_s(page, evaluated):
    rows = page.rows("On the validation images, in per cent")
    for which, found in evaluated.items():
        _, *cells = rows[f"small, {which}"]
        assert cells[:3] == [shown(level.miou) for level in found.levels]
        assert cells[3] == shown(found.accuracy)
        assert cells[4] == f"{found.severity.mean:.2f}"
        assert cells[5] == shown(found.violations.share)
    assert rows["flat, last"][-1] == "–"


def test_every_class_has_its_iou(page, run, flat_run, evaluated):
    rows = page.rows("IoU of every class, last network, in per cent")
    h, flat = run.hierarchy, evaluate_run(flat_run.path, device="cpu")["last"]
    assert list(rows) == list(h.names)
    for name, (level, mine, other) in rows.items():
        assert int(level) == h.depths[h.index(name)]
        for cell, found in ((mine, evaluated["last"]), (other, flat)):
            iou = found.levels[int(level) - 1].classes[name]
            assert cell == ("–" if np.isnan(iou) else shown(iou, 1))


def test_confusion_is_that_of_the_matrix(page, run, evaluated):
    rows = page.rows("Across superclasses: truth by row, in per cent of its pixels")
    h, counts = run.hierarchy, evaluated["last"].confusion
    member = torch.tensor([[name == h.path(leaf)[0] for leaf in h.leaves] for name in h.levels[0]]).long()
    top = (member @ counts @ member.T).tolist()
    for name, row in zip(h.levels[0], top, strict=True):
        pixels, *cells = rows[name]
        assert int(pixels.replace(",", "")) == sum(row)
        assert cells == [shown(k / sum(row), 1) for k in row]


def test_conflicts_by_family_over_training(page, evaluated):
    rows = page.rows("Pixels that break a rule, by family, in per cent")
    head = page.tables["Pixels that break a rule, by family, in per cent"][0][0]
    assert head == ["rules", "step 20", "step 30"]
    broken = evaluated["last"].violations
    assert rows["any rule"][-1] == shown(broken.share, 1)
    assert broken.share > 0
    by_letter = {name[0]: cells[-1] for name, cells in rows.items() if name != "any rule"}
    assert by_letter == {family: shown(share, 1) for family, share in broken.rules.items()}


def test_curves_are_of_both_runs(page):
    for title in ("loss", "pixels in conflict (%)", "counted pixels (%)", "validation mIoU, level 3 (%)"):
        assert f"{title} over steps. " in page.text
    assert page.text.count("over steps. small: ") >= 8


def test_settings_and_versions(page, run):
    differ = page.rows("Settings that differ")
    assert differ["model.head"] == ["hierarchical", "flat"]
    assert "train.steps" not in differ
    assert page.rows("Versions and data")["torch"][0] == run.record["versions"]["torch"]
    assert "decoder_channels: 32" in page.text


# ---- what it measures ------------------------------------------------------------------------------------------------


def test_measured_by_hand(run):
    """The last network, pixel by pixel, from what is seen of each image."""
    *_, last = measure(run, device="cpu")
    viewer = Viewer(run, "last", "cpu")
    h = run.hierarchy
    taken, right, conflicts, pixels = [], [], torch.zeros(len(h.leaves)), torch.zeros(len(h.leaves))
    for item in validation(run):
        look, truth = viewer.look(item.image()), truth_of(item)
        known = truth >= 0
        assert last.images[item.name]["right"] == float((look.chosen == truth)[known].double().mean())
        assert last.images[item.name]["conflict"] == float(look.conflict[known].double().mean())
        for leaf in range(len(h.leaves)):
            conflicts[leaf] += (look.conflict & (truth == leaf)).sum()
            pixels[leaf] += (truth == leaf).sum()
        where = look.conflict & known
        taken.append(look.result.log_prob[0][where].exp())
        right.append(look.after[where] == truth[where])
    p, ok = torch.cat(taken).double(), torch.cat(right)
    assert last.posterior.pixels == len(p) > 0
    for number, (count, said, share) in enumerate(last.posterior.shares()):
        inside = (p * 10).long().clamp(max=9) == number
        assert count == int(inside.sum())
        if count:
            assert said == pytest.approx(float(p[inside].mean()), abs=1e-6)
            assert share == pytest.approx(float(ok[inside].double().mean()))
    for i, leaf in enumerate(h.leaves):
        share = last.conflict["any"][leaf]
        assert share is None if not pixels[i] else share == pytest.approx(float(conflicts[i] / pixels[i]))


def test_networks_are_measured_once(run, monkeypatch):
    before = [one.to_dict() for one in measure(run, device="cpu")]
    assert (before[0]["step"], before[0]["which"]) == (20, "snapshots/step-000020")
    assert before[-1]["which"] == "last"
    monkeypatch.setattr(measuring, "Viewer", None)  # would be needed to measure anything
    assert [one.to_dict() for one in measure(run, device="cpu")] == before
    with pytest.raises(TypeError):
        measure(run, images=2, device="cpu")
    with pytest.raises(TypeError):
        measure(run, again=True, device="cpu")


def test_snapshots_are_measured_on_fewer_images_and_the_page_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "SAMPLE", 2)
    copy = shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("report.json"))
    done = []
    page = write_report([copy], tmp_path / "page.html", device="cpu", progress=lambda _, *at: done.append(at))
    snapshot, *others = measure(open_run(copy), device="cpu")
    names = [item.name for item in validation(run)]
    assert list(snapshot.images) == [names[0], names[2]]
    assert all(list(one.images) == names for one in others)
    assert "measured on 2 of the 4 images, evenly taken" in page.read_text("utf-8")
    assert done[-1] in ((2 + 4, 2 + 4), (2 + 4 + 4, 2 + 4 + 4))  # the best network may be the last
    assert [at for at, _ in done] == sorted(at for at, _ in done)


def test_the_best_network_may_be_the_last(run, evaluated, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    shutil.copy(copy / "last.safetensors", copy / "best.safetensors")
    best, last = measure(open_run(copy), device="cpu")[-2:]
    assert (best.moment.which, last.moment.which) == ("best", "last")
    assert best.evaluation == last.evaluation
    assert last.evaluation["miou"] == evaluated["last"].miou


def test_other_images_are_measured_anew(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    before = measure(open_run(copy), device="cpu")[-1]
    after = measure(open_run(copy, ("data.scenes.seed=5",)), device="cpu")[-1]  # their names are the same
    assert before.images.keys() == after.images.keys()
    assert before.confusion.tolist() != after.confusion.tolist()


def test_another_decision_is_measured_anew(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    before = measure(open_run(copy), device="cpu")[-1]
    after = measure(open_run(copy, ("model.decision=tree",)), device="cpu")[-1]
    assert before.confusion.tolist() != after.confusion.tolist()


def test_a_broken_cache_is_measured_anew(run):
    before = measure(run, device="cpu")[-1].to_dict()
    (run.path / measuring.CACHE).write_text("{no")
    assert measure(run, device="cpu")[-1].to_dict() == before
    assert json.loads((run.path / measuring.CACHE).read_text())["last"]["confusion"] == before["confusion"]


def test_hidden_masks_stay_closed(run, tmp_path, monkeypatch):
    def hidden(*_):
        raise AssertionError("the masks of unlabelled images were asked for")

    monkeypatch.setattr(opening, "open_hidden", hidden)
    monkeypatch.setattr("logicdiag.experiment.accuracy.open_hidden", hidden)
    write_report([run.path], tmp_path / "r.html", device="cpu")


# ---- as a user types it ----------------------------------------------------------------------------------------------


def test_the_command(run, flat_run, tmp_path, capsys):
    out = tmp_path / "new" / "r.html"
    assert main(["report", str(run.path), "--out", str(out), str(flat_run.path), "data.workers=0", "--shown", "1"]) == 0
    assert re.fullmatch(rf"written: {re.escape(str(out))} \(0\.\d MB\)\n", capsys.readouterr().out)
    page = Page(out.read_text("utf-8"))
    assert "2 runs side by side" in page.text
    assert page.text.count("Image val_") == 2


def test_a_run_without_validation_images(tmp_path):
    run = train(config(data={"val": None}, train={"steps": 2}), tmp_path / "run")
    page = Page(write_report([run.path], tmp_path / "r.html").read_text("utf-8"))
    assert "no validation images (data.val)" in page.text
    assert not page.all("img")
    assert not (run.path / measuring.CACHE).exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("nowhere", "nowhere is no run folder"),
        ("data.root=x", "a run is missing: logicdiag report RUN"),
        ("RUN --out .", ".: is a folder, expected a file to write, such as report.html"),
        ("RUN --out text/r.html", "text/r.html: the report cannot be written: "),
        ("RUN --images 0", "--images is 0, expected a whole number of at least 1"),
        ("RUN data.hierarchy_kind=none", "another hierarchy now than the run was trained on"),
        ("RUN --device gpu", "device is 'gpu'"),
    ],
)
def test_mistakes(run, tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no folder")
    if "gpu" in says:
        arguments += " --again"
    assert main(["report", *arguments.replace("RUN", str(run.path)).split()]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["text"]


def test_names_of_runs_differ(run, tmp_path):
    from dataclasses import replace

    runs = [replace(run, path=tmp_path / name) for name in ("a/x", "b/x", "b/y")]
    assert short_names(runs) == ["a/x", "b/x", "y"]
    assert len(set(short_names([runs[0], runs[0]]))) == 1


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "kind"), [("--image val_0000", "png"), ("--image val_0001", "pdf"), ("--hierarchy", "pdf")]
)
def test_figures(run, flat_run, tmp_path, what, kind):
    pytest.importorskip("matplotlib")
    for one in (run, flat_run):
        out = tmp_path / f"{one.path.name}.{kind}"
        assert main(["figure", str(one.path), *what.split(), "--out", str(out), "--device", "cpu"]) == 0
        start = out.read_bytes()[:4]
        assert start == (b"%PDF" if kind == "pdf" else b"\x89PNG")
        if kind == "png":
            pixels = np.asarray(Image.open(out).convert("RGB"))
            assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--image val_0000 --out x.png", 'figures need matplotlib; install it with: pip install "logicdiag[plots]"'),
        (
            "--hierarchy --out x.pgn",
            "--out is 'x.pgn', expected a name that ends with .png or .pdf (did you mean 'png'?)",
        ),
        ("--hierarchy --out x", "--out is 'x', expected a name that ends with .png or .pdf"),
        ("--hierarchy --out x.png --checkpoint both", "checkpoint is 'both'"),
    ],
)
def test_figures_that_cannot_be(run, tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["figure", str(run.path), *arguments.split()]) == 2
    assert capsys.readouterr().err == f"logicdiag: {says}\n" or says.startswith("checkpoint")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["explain", "report", "figure"])
def test_help_needs_nothing(command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert "RUN" in capsys.readouterr().out


# ---- what a run has beside ------------------------------------------------------------------------------------------


def test_without_snapshots_the_best_network_is_a_moment(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("snapshots", "report.json"))
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if "val/miou" in line:
            line["val/miou"] = 0.9 if line["step"] == 10 else 0.1
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    opened = open_run(copy)
    told = Told("run", 0, opened, measure(opened, device="cpu"))
    assert [(one.moment.step, one.moment.which) for one in told.over_time] == [(10, "best"), (30, "last")]
    assert told.last is told.over_time[-1]


def test_what_pseudo_measured_is_shown(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "run")
    moment = {"step": 30, "before": 0.5, "after": 0.625, "counted": 0.25, "learned": None, "conflict": 0.125}
    (copy / "pseudo.json").write_text(json.dumps({"images": 5, "of": 5, "moments": [moment]}))
    page = Page(write_report([copy], tmp_path / "r.html", device="cpu").read_text("utf-8"))
    caption = "Pseudo labels of 5 unlabelled images, as `logicdiag pseudo` measured them, in per cent"
    assert page.rows(caption) == {"step 30": ["50.0", "62.5", "25.0", "–", "12.5"]}


def test_a_run_without_a_network(run, tmp_path, capsys):
    copy = shutil.copytree(run.path, tmp_path / "run", ignore=shutil.ignore_patterns("*.safetensors", "report.json"))
    assert main(["report", str(copy), "--out", str(tmp_path / "r.html")]) == 2
    err = capsys.readouterr().err
    assert err == f"logicdiag: {copy / 'last.safetensors'} is not there; the run has no network yet\n"
    assert not (tmp_path / "r.html").exists()


def test_a_part_of_the_images_is_said_to_be_one(run, tmp_path):
    """By default no more are measured than a minute allows."""
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    page = write_report([copy], tmp_path / "r.html", images=1, device="cpu").read_text("utf-8")
    whole = len(validation(open_run(copy)))
    assert f"On 1 of {whole} validation images, evenly taken (--images all: on every one), in per cent" in page
    page = write_report([copy], tmp_path / "r.html", images=None, device="cpu").read_text("utf-8")
    assert "On the validation images, in per cent" in page


@pytest.mark.parametrize(("words", "images"), [([], 60), (["--images", "all"], None), (["--images", "7"], 7)])
def test_how_many_images_the_command_measures(words, images, monkeypatch, tmp_path):
    asked = []
    written = tmp_path / "page.html"
    written.write_text("page")
    monkeypatch.setattr("logicdiag.report.page.write_report", lambda *args: asked.append(args[2]) or written)
    assert main(["report", "some/run", *words]) == 0
    assert asked == [images]
