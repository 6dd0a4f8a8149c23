"""Calibration, confusion, charts and words, against cases worked by hand."""

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from logicdiag import Hierarchy
from logicdiag.report.calibration import Reliability
from logicdiag.report.confused import sibling_groups, worst_pairs
from logicdiag.report.curves import LOOKS, Line, axis, chart, reliability_chart, thinned
from logicdiag.report.html import Markup, element, shaded, table
from logicdiag.report.pictures import SIDE, label_picture, labels_shown, mistake_picture, shrunk, uri

H = Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": {"car": ["taxi", "racer"], "bus": None}, "sky": None})
COUNTS = torch.tensor(
    [  # bird cat taxi racer bus sky
        [50, 10, 0, 0, 0, 40],
        [5, 15, 0, 0, 0, 0],
        [0, 0, 7, 3, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 0, 4, 5, 10, 0],
        [0, 2, 0, 0, 0, 98],
    ]
)


def test_reliability_by_hand():
    r = Reliability(bins=4)
    r.add(torch.tensor([0.0, 0.1, 0.3, 0.25]), torch.tensor([False, True, True, False]))
    r.add(torch.tensor([[1.0, 0.8]]), torch.tensor([[True, False]]))
    counts, said, right = zip(*r.shares(), strict=True)
    assert counts == (2, 2, 0, 2)
    assert said[:2] == pytest.approx((0.05, 0.275))
    assert math.isnan(said[2])
    assert said[3] == pytest.approx(0.9)
    assert right[:2] == (0.5, 0.5)
    assert right[3] == 0.5
    assert r.error() == pytest.approx((2 * 0.45 + 2 * 0.225 + 2 * 0.4) / 6)
    assert Reliability.from_list(r.to_list()).error() == r.error()
    assert math.isnan(Reliability().error())


def test_probabilities_that_mean_what_they_say():
    g = torch.Generator().manual_seed(0)
    p = torch.rand(200_000, generator=g)
    r = Reliability()
    r.add(p, torch.rand(200_000, generator=g) < p)
    assert r.error() < 0.01
    bold = Reliability()
    bold.add(p.sqrt(), torch.rand(200_000, generator=g) < p)
    assert bold.error() == pytest.approx(2 / 3 - 1 / 2, abs=0.01)  # the mean of sqrt(p) - p


def test_confusion_by_hand():
    groups = {group.parent: group for group in sibling_groups(COUNTS, H)}
    assert list(groups) == [None, "animal", "vehicle", "car"]
    assert groups[None].names == ("animal", "vehicle", "sky")
    assert groups[None].counts.tolist() == [[80, 0, 40], [1, 29, 0], [2, 0, 98]]
    assert groups["animal"].counts.tolist() == [[50, 10, 40], [5, 15, 0]]
    assert groups["vehicle"].columns == ("car", "bus", "elsewhere")
    assert groups["vehicle"].counts.tolist() == [[10, 0, 0], [9, 10, 1]]
    assert groups["car"].counts.tolist() == [[7, 3, 0], [0, 0, 0]]
    for group in groups.values():
        below = [[name in H.path(leaf) for leaf in H.leaves] for name in group.names]
        assert group.counts.sum(1).tolist() == [int(COUNTS[row].sum()) for row in torch.tensor(below)]


def test_the_worst_pairs_by_hand():
    pairs = worst_pairs(COUNTS, H, most=4)
    assert [(p.truth, p.said, p.pixels, p.height, p.ancestor) for p in pairs] == [
        ("bird", "sky", 40, 3, None),
        ("bird", "cat", 10, 1, "animal"),
        ("cat", "bird", 5, 1, "animal"),
        ("bus", "racer", 5, 2, "vehicle"),
    ]
    assert [p.share for p in pairs] == [0.4, 0.1, 0.25, 0.25]
    assert len(worst_pairs(COUNTS, H, most=100)) == 8  # what never happens is no mistake


def test_a_chart_is_svg_with_every_run():
    lines = [Line("a < b", [(10, 5.0), (20, 2.5)], 0), Line("c", [(20, 1.0)], 1), Line("none", [], 2)]
    root = ElementTree.fromstring(chart("the <loss>", lines, low=0.0))
    assert root.find("title").text == "the <loss>"
    assert root.find("desc").text == "the <loss> over steps. a < b: 5 first, 2.5 last; c: 1 first, 1 last"
    drawn = {g.find("title").text: g for g in root.findall("g")}
    assert drawn.keys() == {"a < b", "c"}
    first, last = (tuple(map(float, p.split(","))) for p in drawn["a < b"].find("polyline").get("points").split())
    assert first[0] < last[0]
    assert first[1] < last[1]  # falls, and y points down
    assert drawn["c"].find("polyline") is None
    assert drawn["c"].find("polygon") is not None  # one point is a mark
    ElementTree.fromstring(chart("nothing", []))
    ElementTree.fromstring(reliability_chart("r", [Line("a", [(0.5, 0.5)], LOOKS + 1)], "told", "id"))


def test_the_axis_holds_all_values():
    for low, high in ((0, 1), (0, 0.013), (-3, 17), (0, 40000), (99.2, 99.9), (5, 5)):
        a = axis(low, high)
        assert a.low <= low
        assert a.high >= high
        assert 3 <= len(a.ticks) <= 9
        assert a.place(a.low, 10, 20) == 10
        assert a.place(a.high, 10, 20) == 20


def test_long_curves_are_thinned_to_means():
    points = [(float(i), float(i % 2)) for i in range(10_000)]
    thin = thinned(points, most=100)
    assert len(thin) == 100
    assert thin[0] == points[0]
    assert thin[-1] == points[-1]
    assert all(abs(y - 0.5) < 0.02 for _, y in thin[1:-1])
    assert thinned(points[:50]) == points[:50]


def test_text_is_escaped_and_markup_is_not():
    assert element("p", "<b>", Markup("<i>x</i>"), None, title='"') == '<p title="&quot;">&lt;b&gt;<i>x</i>–</p>'
    assert "&lt;run&gt;" in table("<c>", ["a"], [["<run>", 1]])
    assert "50.0" in shaded(0.5)
    assert "style" not in shaded(None)


def test_pictures_of_labels():
    leaf = torch.tensor([[0, -1], [5, 2]])
    shown = labels_shown(leaf, H, torch.tensor([[False, True], [False, False]]))
    assert len({tuple(colour) for colour in shown.reshape(-1, 3).tolist()}) == 4
    mistakes = np.asarray(mistake_picture(leaf, torch.tensor([[0, 1], [-1, 3]])))
    right, wrong, unknown = mistakes[0, 0], mistakes[0, 1], mistakes[1, 0]
    assert right.mean() > unknown.mean() > wrong.mean()
    assert not np.array_equal(mistakes[1, 1], right)


def test_large_pictures_shrink_and_keep_their_labels(tmp_path):
    leaf = torch.zeros(700, 1400, dtype=torch.int64)
    leaf[:, 700:] = 4
    small = shrunk(leaf)
    assert small.shape == (SIDE // 2, SIDE)
    assert small[:, : SIDE // 2].eq(0).all()
    assert small[:, SIDE // 2 :].eq(4).all()
    assert len(uri(label_picture(leaf, H))) < 2000
    import base64
    import io

    back = Image.open(io.BytesIO(base64.b64decode(uri(label_picture(leaf, H)).partition(",")[2]))).convert("RGB")
    assert np.array_equal(np.asarray(back), labels_shown(small, H))
