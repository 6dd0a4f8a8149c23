"""A page with the tables of a suite in it: what stands between its markers, and that it needs no run."""

import csv
import json
import re
import shutil

import pytest
import yaml

from logicdiag.cli import main
from logicdiag.experiment.grid import expand
from logicdiag.experiment.suite import load_suite

from ..engine.small import settings
from .files import finish, suite_file

BOTH = ["left", "right"]
GRID = [{"name": {"A": {"psi.q": 1}, "B": {"psi.q": 2}, "C, last": {"psi.q": 3}}}]
SAME = {"last": 0.1, "best": 0.2, "best_step": 3, "fingerprint": "reported"}


def page_of(folder, content, labels=((2, 4), (3, 5)), **keys):
    """A suite of one table on two data sets, with a page beside it."""
    data = {**settings()["data"], "scenes": {**settings()["data"]["scenes"], "labeled": "{labels}"}}
    for name, counts in zip(BOTH, labels, strict=True):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**settings(), "data": data, "labels": list(counts)}))
    table = {"title": "One", "base": "{dataset}.yaml", "grid": GRID, "seeds": [0, 1, 2], "reference": "A", **keys}
    table["results"] = str(folder / "results")
    (folder / "page.md").write_text(content, "utf-8")
    return suite_file(folder, {"one.yaml": table}, datasets=BOTH, page="page.md", names={"right": "Right"})


def done(path, values, **more):
    """Runs as if they had been done: (data set, row, labels) -> mIoU of seed 0, 1, ..."""
    for e in load_suite(path).experiments:
        for cell in expand(e):
            found = values.get((e.dataset, cell.options["name"], cell.labels), ())
            if cell.seed < len(found):
                same = {"val": SAME} if e.dataset == "left" else {}
                finish(e, cell, found[cell.seed], found[cell.seed] + 1, **{**same, **more})


def made(path, *changes):
    """The page's text, after the command."""
    assert main(["experiment", "table", str(path), "--no-plots", *changes]) == 0
    return (path.parent / "page.md").read_text("utf-8")


def tables(text):
    """Cells, row by row, of each table."""
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "---" not in line]
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    ]


def test_data_sets_side_by_side(tmp_path):
    """The best checkpoint only where another list chose it; fewer runs are said; only labels that have a run."""
    path = page_of(tmp_path, "Before.\n\n<!-- table one -->\nold\n<!-- end -->\n\nBehind.\n")
    values = {("left", "A", 2): (40, 42, 44), ("left", "B", 2): (43, 44), ("right", "A", 3): (50, 52, 54)}
    done(path, {**values, ("right", "C, last", 3): (49,)})
    text = made(path)
    assert tables(text) == [
        [
            ["", "left, 2 labels", "less A", "Right, 3 labels", "best", "less A"],
            ["A", "42.0 ± 2.0", "", "52.0 ± 2.0", "53.0 ± 2.0", ""],
            ["B", "43.5 ± 0.7 (2)", "+2.5 ± 0.7 (2)", "–", "–", "–"],
            ["C, last", "–", "–", "49.0 (1)", "50.0 (1)", "-1.0 (1)"],
        ]
    ]
    assert text.startswith("Before.\n\n<!-- table one -->\n\n|")
    assert text.endswith("|\n\n<!-- end -->\n\nBehind.\n")
    assert made(path) == text


def test_a_block_for_each_number_of_labels(tmp_path):
    """By their order, whatever the numbers are; those without any run are left out."""
    path = page_of(tmp_path, "<!-- table one -->\n<!-- end -->\n", ((2, 4, 8), (3, 5)), reference=None)
    done(path, {("left", "A", 2): (40,), ("right", "B", 3): (30,), ("left", "B", 8): (60,)})
    first, second = tables(made(path))
    assert first[:2] == [["", "left, 2 labels", "Right, 3 labels", "best"], ["A", "40.0 (1)", "–", "–"]]
    assert second[:3] == [["", "left, 8 labels"], ["A", "–"], ["B", "60.0 (1)"]]
    done(path, {("right", "C, last", 5): (31, 33, 35)})
    _, second, third = tables(made(path))
    assert second[0] == ["", "left, 4 labels", "Right, 5 labels", "best"]
    assert second[3] == ["C, last", "–", "33.0 ± 2.0", "34.0 ± 2.0"]
    assert third[0] == ["", "left, 8 labels"]


def test_rows_that_are_spoiled(tmp_path):
    """They stand in brackets, also in pairs; where the reference is spoiled, nothing is compared with it."""
    marker = '<!-- table one\nspoiled: {{{}}}\npairs: [["C, last", B], [B, A]]\n-->\n<!-- end -->\n'
    path = page_of(tmp_path, marker.format("right: [B]"))
    values = {(name, row, count): (40, 41, 42) for name, count in (("left", 2), ("right", 3)) for row in "AB"}
    done(path, {**values, ("left", "C, last", 2): (41, 40, 42)})
    table, pairs = tables(made(path))
    same = "41.0 ± 1.0"
    assert table[2] == ["B", same, "+0.0 ± 0.0", f"[{same}]", "[42.0 ± 1.0]", "[+0.0 ± 0.0]"]
    assert table[3] == ["C, last", same, "+0.0 ± 1.0", "–", "–", "–"]
    assert pairs == [
        ["", "left, 2 labels", "Right, 3 labels"],
        ["C, last less B", "+0.0 ± 1.0", "–"],
        ["B less A", "+0.0 ± 0.0", "[+0.0 ± 0.0]"],
    ]
    (tmp_path / "page.md").write_text(marker.format("right: [A]"))
    table, pairs = tables(made(path))
    assert table[0] == ["", "left, 2 labels", "less A", "Right, 3 labels", "best"]
    assert table[1] == ["A", same, "", f"[{same}]", "[42.0 ± 1.0]"]
    assert pairs[2] == ["B less A", "+0.0 ± 0.0", "[+0.0 ± 0.0]"]


def test_pairs_over_all_numbers_of_labels(tmp_path):
    path = page_of(tmp_path, "<!-- table one\npairs: [[B, A]]\n-->\n<!-- end -->\n")
    values = {("left", row, count): (40 + count * (row == "B"),) * 3 for row in "AB" for count in (2, 4)}
    done(path, {**values, ("right", "A", 5): (30,)})
    *_, pairs = tables(made(path))
    assert pairs == [
        ["", "left, 2 labels", "left, 4 labels", "Right, 5 labels"],
        ["B less A", "+2.0 ± 0.0", "+4.0 ± 0.0", "–"],
    ]


def test_what_is_missing(tmp_path):
    """Runs that two rows share are one; rows are named, with seeds where some are done."""
    path = page_of(tmp_path, "<!-- missing -->\n<!-- end -->\n")
    done(path, {("left", "A", 2): (40,) * 3, ("left", "B", 2): (43, 44), ("right", "A", 3): (50,) * 3})
    text = made(path)
    assert tables(text) == [
        [
            ["table", "configuration", "left: cells", "done", "Right: cells", "done"],
            ["One", "`one.yaml`", "18", "5", "18", "3"],
        ]
    ]
    assert "\nTables share runs: of 36 runs 8 are done, which took 12 min together, each on its own clock.\n" in text
    assert re.findall(r"^- (.*)$", text, re.MULTILINE) == [
        "one, left, 2 labels: B (1 of 3: seed 2); C, last",
        "one, left, 4 labels: all",
        "one, Right, 3 labels: B; C, last",
        "one, Right, 5 labels: all",
    ]
    done(path, {(name, row, n): (1,) * 3 for name in BOTH for row in ("A", "B", "C, last") for n in range(2, 6)})
    assert "Not done" not in made(path)
    keys = yaml.safe_load(path.read_text())
    shutil.copy(tmp_path / "one.yaml", tmp_path / "two.yaml")
    path.write_text(yaml.safe_dump({**keys, "tables": ["one.yaml", "two.yaml"]}))
    text = made(path)
    assert [line[2:] for line in tables(text)[0][1:]] == [["18", "18", "18", "18"]] * 2
    assert "of 36 runs 36 are done" in text


def test_pseudo_labels(tmp_path):
    """Means over seeds, at the steps that are asked for, or at all; other rows and settings do not count."""
    marker = "<!-- pseudo one\nrow: B\n{}-->\n<!-- end -->\n"
    path = page_of(tmp_path, marker.format("steps: [3]\n"))
    assert "Nothing was measured yet." in made_anyway(path)
    done(path, {("left", row, 2): (40, 41, 42) for row in "AB"})
    for e in load_suite(path).experiments:
        for cell in expand(e):
            run = e.out_folder / "runs" / cell.run_name
            if run.is_dir():
                share = 0.5 + cell.seed / 10 - 0.4 * (cell.options["name"] == "A")
                moments = [
                    {"step": step, "pixels": 9, "before": share, "conflict": None if cell.seed else 0.25}
                    for step in ([3, 6] if cell.seed < 2 else [6])
                ]
                (run / "pseudo.json").write_text(json.dumps({"images": 1, "moments": moments}))
    [[head, row]] = tables(made(path))
    assert head[:4] == ["B", "step", "likeliest leaf right", "repaired label right"]
    assert row == ["left, 2 labels", "3 (2)", "55.0", "–", "25.0", "–", "–", "–", "–"]
    (tmp_path / "page.md").write_text(marker.format(""))
    [[_, first, second]] = tables(made(path))
    assert [line[:3] for line in (first, second)] == [["left, 2 labels", "3 (2)", "55.0"], ["", "6", "60.0"]]


def test_other_figures(tmp_path):
    """Means of the runs that have them; rows and columns that none has are left out."""
    marker = "<!-- figures one\ncolumns: {miou_top: groups, violations: broken, miou_parents: parents}\n{rows}-->\n"
    path = page_of(tmp_path, marker.replace("{rows}", "") + "<!-- end -->\n", labels=((2,), (3,)))
    done(path, {("left", "A", 2): (40, 42, 44), ("left", "B", 2): (43,), ("right", "A", 3): (50, 52)})
    for e in load_suite(path).experiments:
        for cell in expand(e):
            file = e.out_folder / "runs" / cell.run_name / "result.json"
            if file.is_file() and cell.seed < 2:
                result = json.loads(file.read_text())
                share = 0.5 + cell.seed / 10
                of_right = {"violations": {"share": share, "rules": {}}} if e.dataset == "right" else {}
                result["evaluated"]["val"]["last"] |= {"levels": [{"level": 1, "miou": share}], **of_right}
                file.write_text(json.dumps(result))
    assert tables(made(path)) == [
        [
            ["", "left, 2 labels: groups", "Right, 3 labels: groups", "Right, 3 labels: broken"],
            ["A", "55.0 ± 7.1 (2)", "55.0 ± 7.1 (2)", "55.0 ± 7.1 (2)"],
            ["B", "50.0 (1)", "–", "–"],
        ]
    ]
    (tmp_path / "page.md").write_text(marker.replace("{rows}", "rows: [B, A]\npairs: [[B, A]]\n") + "<!-- end -->\n")
    [[_, *rows]] = tables(made(path))
    assert [row[0] for row in rows] == ["B", "A", "B less A"]
    assert rows[2][1:] == ["+0.0 (1)", "–", "–"]


def test_pseudo_labels_by_class(tmp_path):
    """The commonest class first; shares are means over seeds, and rows stand side by side."""
    marker = "<!-- classes one\ndataset: right\nrows: [A, B]\n{}-->\n<!-- end -->\n"
    path = page_of(tmp_path, marker.format(""), labels=((2,), (3,)))
    assert "Nothing was measured yet." in made_anyway(path)
    done(path, {("right", row, 3): (40, 41) for row in "AB"})
    right = load_suite(path).experiments[1]
    for cell in expand(right):
        run = right.out_folder / "runs" / cell.run_name
        if run.is_dir():
            share = 0.1 + cell.seed / 10 + 0.4 * (cell.options["name"] == "B")
            classes = {
                "rare": {"pixels": 1, "conflict": 0.5, "conflict_before": share, "broken": None},
                "common": {"pixels": 3, "conflict": 0.25, "conflict_before": share, "broken": 0.125},
            }
            moments = [{"step": 3, "pixels": 4, "classes": classes}]
            (run / "pseudo.json").write_text(json.dumps({"images": 1, "moments": moments}))
    [[head, *rows]] = tables(made(path))
    titles = ["of those: likeliest leaf right", "repaired label right", "wrong, then right", "right, then wrong"]
    assert head == ["Right, 3 labels", "of all pixels", "A: in conflict", *titles, "B: in conflict", *titles]
    assert rows == [
        ["common", "75.0", "25.0", "15.0", "–", "–", "12.5", "25.0", "55.0", "–", "–", "12.5"],
        ["rare", "25.0", "50.0", "15.0", "–", "–", "–", "50.0", "55.0", "–", "–", "–"],
    ]
    (tmp_path / "page.md").write_text(marker.format("classes: [rare]\n"))
    assert [row[:2] for row in tables(made(path))[0][1:]] == [["rare", "25.0"]]
    (tmp_path / "page.md").write_text(marker.format("classes: [rar]\n"))
    assert main(["experiment", "table", str(path), "--no-plots"]) == 2


def made_anyway(path):
    """The page where one run of another row is done."""
    done(path, {("left", "C, last", 2): (40,)})
    return made(path)


def test_csv_files_are_enough(tmp_path):
    """Of other machines, say; rows of other settings do not count."""
    path = page_of(tmp_path, "<!-- table one -->\n<!-- end -->\n\n<!-- missing -->\n<!-- end -->\n")
    done(path, {("left", "A", 2): (40, 42, 44), ("right", "A", 3): (50, 52, 54)})
    text = made(path)
    for name in BOTH:
        shutil.rmtree(tmp_path / name)
    (tmp_path / "page.md").write_text(text.replace("42.0", "99.9"))
    assert made(path) == text
    file = tmp_path / "results" / "one.csv"
    rows = csv.DictReader(file.read_text().splitlines())
    lost = next(row["key"] for row in rows if row["dataset"] == "left" and row["seed"] == "1")
    file.write_text(file.read_text().replace(lost, "0123456789"))
    changed = made(path)
    assert tables(changed)[0][1][1] == "42.0 ± 2.8 (2)"
    assert tables(changed)[1][1] == ["One", "`one.yaml`", "18", "2", "18", "3"]


def test_the_page_is_of_the_whole_suite(tmp_path, capsys):
    """Whatever part of it is made; page= leaves the page alone, and so does a suite without any run."""
    path = page_of(tmp_path, "<!-- table one -->\n<!-- end -->\n")
    assert made(path) == "<!-- table one -->\n<!-- end -->\n"
    assert f"{tmp_path / 'page.md'}: left as it is, no run is known" in capsys.readouterr().out
    done(path, {("left", "A", 2): (40,), ("right", "A", 3): (50,)})
    text = made(path, "datasets=[left]")
    assert f"written: {tmp_path / 'page.md'}" in capsys.readouterr().out
    assert tables(text)[0][:2] == [
        ["", "left, 2 labels", "less A", "Right, 3 labels", "less A"],
        ["A", "40.0 (1)", "", "–", ""],
    ]
    text = made(path)
    assert tables(text)[0][1] == ["A", "40.0 (1)", "", "50.0 (1)", "51.0 (1)", ""]
    assert made(path, "datasets=[left]", "train.steps=9") == text
    (tmp_path / "page.md").write_text("<!-- table one -->\n<!-- end -->\n")
    assert made(path, "page=") == "<!-- table one -->\n<!-- end -->\n"
    (tmp_path / "other.md").write_text("<!-- missing -->\n<!-- end -->\n")
    made(path, "page=other.md")
    assert "of 36 runs 2 are done" in (tmp_path / "other.md").read_text()


def test_a_table_without_runs(tmp_path):
    path = page_of(tmp_path, "<!-- table two -->\n<!-- end -->\n")
    keys = yaml.safe_load(path.read_text())
    two = {**yaml.safe_load((tmp_path / "one.yaml").read_text()), "grid": [{"psi.q": [4]}], "reference": None}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(two))
    path.write_text(yaml.safe_dump({**keys, "tables": ["one.yaml", "two.yaml"]}))
    e = load_suite(path).experiments[0]
    finish(e, expand(e)[0], 40)
    assert made(path) == "<!-- table two -->\n\nNo run is done yet.\n\n<!-- end -->\n"


END = "\n<!-- end -->\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("<!-- table one -->\n", "page.md:1: <!-- table --> has no <!-- end -->"),
        (
            f"\n<!-- table one -->\n<!-- missing -->{END}",
            "page.md:2: <!-- table --> has no <!-- end --> before the next",
        ),
        (f"text\n\n<!-- tabel one -->{END}", "page.md:4: <!-- end --> ends nothing"),
        (f"<!-- table on -->{END}", "table is of 'on', which is no table of the suite (did you mean 'one'?)"),
        (f"<!-- table -->{END}", "page.md:1: table is of '', which is no table of the suite"),
        (f"<!-- pseudo one -->{END}", "page.md:1: row has '', which is no row of the table"),
        (f"<!-- figures one\ncolumns: {{miou: a}}\n-->{END}", "columns has 'miou', which is no column with figures"),
        (f"<!-- figures one\nrows: [D]\n-->{END}", "page.md:1: rows has 'D', which is no row of the table"),
        (f"<!-- classes one -->{END}", "page.md:1: dataset has '', which is no data set of one"),
        (f"<!-- classes one\ndataset: left\n-->{END}", "page.md:1: rows are missing, expected a list of rows"),
        (f"<!-- choice one\naxis: nam\n-->{END}", "axis is 'nam', which is no axis of the table (did you mean 'name'"),
        (f"<!-- choice one -->{END}", "page.md:1: stays has 'null', which is no option of name"),
        (f"<!-- choice one\noptions: [A, D]\n-->{END}", "page.md:1: options has 'D', which is no option of name"),
        (
            f"<!-- choice one\naxis: name\nstays: A\nsame: {{D: ''}}\n-->{END}",
            "page.md:1: same has 'D', which is no row of the table",
        ),
        (f"<!-- choice one\noptions: [A, B]\nstays: 'C, last'\n-->{END}", "stays has 'C, last', which is no option"),
        (f"<!-- missing one -->{END}", "page.md:1: missing takes nothing behind it, found 'one'"),
        (None, "all.yaml: the page page.md cannot be read: No such file"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, content, says):
    """One sentence, and nothing is written, not even tables."""
    path = page_of(tmp_path, content or "")
    done(path, {("left", "A", 2): (40,)})
    if content is None:
        (tmp_path / "page.md").unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "table", "all.yaml"]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "results").exists()
    assert content is None or (tmp_path / "page.md").read_text() == content


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("pair: []", "page.md:1: unknown key pair (did you mean 'pairs'?)"),
        ("pairs: [[A]]", "page.md:1: pairs is the list [['A']], expected a list"),
        ("pairs: [[A, last]]", "page.md:1: pairs has 'last', which is no row of the table"),
        ("spoiled: [A]", "page.md:1: spoiled is the list ['A'], expected a mapping"),
        ("spoiled: {lef: [A]}", "page.md:1: spoiled has 'lef', which is no data set of one (did you mean 'left'?)"),
        (
            "spoiled: {left: [C last]}",
            "spoiled.left has 'C last', which is no row of the table (did you mean 'C, last'?)",
        ),
        ("spoiled: {left: A}", "page.md:1: spoiled.left is 'A', expected a list of rows"),
        ("- A", "page.md:1: expected keys such as spoiled: behind table one, found ['A']"),
        ("}", "page.md:1:1:1: this is not YAML"),
    ],
)
def test_mistakes_in_the_keys_of_a_marker(tmp_path, capsys, keys, says):
    path = page_of(tmp_path, f"<!-- table one\n{keys}\n-->{END}")
    assert main(["experiment", "table", str(path)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"rihgt": "Right"}, "all.yaml: names has 'rihgt', which is no data set of it (did you mean 'right'?)"),
        ({"right": ["R"]}, "all.yaml: names.right is ['R'], expected text"),
        ("Right", "all.yaml: names is 'Right', expected a mapping"),
    ],
)
def test_names_of_data_sets(tmp_path, capsys, names, says):
    path = page_of(tmp_path, "")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "names": names}))
    assert main(["experiment", "table", str(path)]) == 2
    assert says in capsys.readouterr().err
