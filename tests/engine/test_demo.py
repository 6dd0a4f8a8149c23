"""The demo, small: three runs, a table, and a figure."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from logicdiag.data.config import ScenesConfig
from logicdiag.engine.demo import run_demo
from logicdiag.engine.figure import CONFLICT, STRIPE, Column, coloured, grid, marked
from logicdiag.errors import ConfigError, RunError
from logicdiag.logic.hierarchy import Hierarchy
from logicdiag.palette import leaf_colours


def test_three_methods_a_table_and_a_figure(tmp_path):
    said = io.StringIO()
    tiny = ScenesConfig(size=64, train=16, labeled=12, val=2)
    found = run_demo(tmp_path / "demo", 10, 0, Console(file=said, width=100), tiny)
    assert [row.method for row in found] == ["supervised", "fixmatch", "logicdiag"]
    written = json.loads((tmp_path / "demo" / "table.json").read_text())
    for row, entry in zip(found, written, strict=True):
        assert entry["method"] == row.method
        assert entry["last"]["miou"] == pytest.approx(row.last.miou)
        assert f"{100 * row.last.miou:.2f}" in said.getvalue()
        assert (row.last.violations is None) == (row.method != "logicdiag")
    with Image.open(tmp_path / "demo" / "pseudo_labels.png") as figure:
        assert figure.width > 8 * 192  # the scene, three moments before and after, the truth
        assert len(np.unique(np.asarray(figure.convert("RGB")).reshape(-1, 3), axis=0)) > 100
    again = run_demo(tmp_path / "demo", 10, 0, Console(file=io.StringIO()), tiny)  # a demo may be run again
    assert [row.last.miou for row in again] == [row.last.miou for row in found]


def test_somebody_s_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="holds something that is not a demo"):
        run_demo(tmp_path, 10, 0, Console(file=io.StringIO()))
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_too_few_steps(tmp_path):
    with pytest.raises(ConfigError, match="--steps is 3, expected at least 10"):
        run_demo(tmp_path / "demo", 3, 0, Console(file=io.StringIO()))


def test_colours():
    h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    leaf = torch.tensor([[0, 1], [2, -1]])
    picture = coloured(leaf, h)
    assert np.array_equal(picture[:1], leaf_colours(h)[[[0, 1]]])
    assert picture[1, 1].tolist() == [0, 0, 0]
    assert tuple(marked(leaf, h)[1, 1]) in (CONFLICT, STRIPE)
    assert np.array_equal(marked(leaf, h)[0], picture[0])
    sheet = grid([Column("one", [picture, picture]), Column("two", [picture])], h)
    assert sheet.size[0] > 2 * 192
    assert sheet.size[1] > 2 * 192
