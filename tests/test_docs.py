"""Pages of the documentation that are run, and tables in them that follow the code."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from logicdiag.cli import main
from logicdiag.engine.run import open_run, read_metrics
from logicdiag.experiment.page import Page
from logicdiag.experiment.suite import load_suite
from logicdiag.methods.about import NOTE, markdown
from logicdiag.methods.build import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_on_extending_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent / "src"))
    ((code,), (config,), (commands,)) = (blocks("extending.md", language) for language in ("python", "yaml", "sh"))
    lines = code.splitlines()
    assert lines[0] == "# mine.py"
    assert len(lines) < 60
    (tmp_path / "mine.py").write_text(code, "utf-8")
    (tmp_path / "mine.yaml").write_text(config, "utf-8")
    told = []
    for command in commands.splitlines():
        program, *arguments = command.split()
        assert program == "python"
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        told.append(done.stdout)
    trained, listed, evaluated, diagnosed = told
    assert trained.startswith("done: runs/mine")
    assert re.search(r"^mirror +2026 +yes +any +1 +0 or 1 +3 +2 +1\.00 +Mirror: You, here$", listed, re.MULTILINE)
    assert "mIoU" in evaluated
    assert diagnosed.startswith("done: runs/diagnosed")
    mine = open_run(tmp_path / "runs/mine")
    assert (mine.config.method.name, mine.config.psi.name) == ("mirror", "margin")
    assert any(0 < line.get("counted", 0) <= 1 for line in read_metrics(mine.path))


def test_the_page_on_methods_tells_of_all():
    page = (DOCS / "methods.md").read_text("utf-8")
    assert markdown() in page, "write the output of `logicdiag methods --markdown` there"
    sections = {section.split("\n")[0]: section for section in page.split("\n## ")[1:]}
    for name in METHODS:
        assert f"](images/methods/{name.replace('+', 'p')}.svg)" in sections[name], f"{name} has no picture"


def test_pictures_of_methods_are_what_is_drawn():
    drawn = runpy.run_path(str(DOCS / "wiring.py"))["pictures"]()
    assert set(drawn) == {"legend.svg", *(f"{name.replace('+', 'p')}.svg" for name in METHODS)}
    for name, text in drawn.items():
        ElementTree.fromstring(text)
        assert (DOCS / "images" / "methods" / name).read_text("utf-8") == text, "run `python docs/wiring.py`"


def test_methods_are_listed(capsys):
    assert main(["methods"]) == 0
    told = capsys.readouterr().out
    assert told.endswith(NOTE)
    assert max(map(len, told.splitlines())) <= 120
    rows = {line.split()[0]: re.split(" {2,}", line)[1:9] for line in told.splitlines()[1 : 1 + len(METHODS)]}
    assert list(rows) == list(METHODS)
    assert rows["supervised"] == ["2023", "no", "any", "1", "0 or 1", "1", "1", "0.43"]
    assert rows["fixmatch"] == ["2020", "yes", "any", "1", "0 or 1", "3", "2", "1.00"]
    assert rows["mean_teacher"] == ["2020", "yes", "any", "1", "1", "3", "2", "1.00"]
    assert rows["cps"] == ["2021", "yes", "encoder", "2", "0 or 1", "6", "4", "2.00"]
    assert rows["mkd"] == ["2023", "yes", "encoder", "2", "2", "8", "4", "2.29"]
    # 0.3 of the steps as supervised, the rest as fixmatch: 0.3 * 1 + 0.7 * 3, 0.3 * 1 + 0.7 * 2, 0.3 * 3 / 7 + 0.7
    assert rows["st++"] == ["2022", "yes", "any", "1", "0 or 1", "2.4", "1.7", "0.83"]
    assert rows["algorithm1"] == ["2023", "yes", "any", "1", "0", "2", "2", "0.86"]
    assert "\nu2pl remembers likely negatives\n" in told
    assert main(["methods", "--markdown"]) == 0
    assert capsys.readouterr().out == markdown()


@pytest.mark.parametrize(
    ("name", "marker"), [("all", "table"), ("choosing", "choice"), ("generated", "table"), ("half", "choice")]
)
def test_pages_of_experiments_are_what_the_csv_files_say(name, marker, monkeypatch):
    monkeypatch.chdir(ROOT)
    suite = load_suite(f"configs/experiments/{name}.yaml")
    assert suite.page is not None
    page = Page(suite.page, suite)
    assert not page.is_empty
    told = suite.page.read_text("utf-8")
    assert page.text() == told, f"run `logicdiag experiment table configs/experiments/{name}.yaml`"
    for e in suite.experiments:
        assert f"<!-- {marker} {e.table}" in told, e.table


def test_figures_in_the_text_on_results_stand_in_a_table():
    """The text is by hand: a mean or difference that no table has any more is found here."""
    blocks = re.compile(r"^<!-- (?:table|figures|pseudo|classes|missing)\b.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
    page = (DOCS / "results.md").read_text("utf-8")
    tables, by_hand = blocks.findall(page), blocks.sub("", page)
    figures = re.findall(r"[+-]?\d+\.\d ± \d+\.\d", by_hand)
    assert len(figures) > 5
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", "".join(tables)), figure
    readme = (ROOT / "README.md").read_text("utf-8")
    [answer] = re.findall(r"\*\*Does the reasoning pay\?\*\*.*?\n\n", readme, re.DOTALL)
    [methods] = [table for table in tables if table.startswith("<!-- table methods")]
    means = re.findall(r"\d+\.\d", answer)
    assert means
    for mean in means:
        assert f" {mean} ±" in methods, mean
