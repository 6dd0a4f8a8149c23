import random

import pytest

from logicdiag import Hierarchy, HierarchyError
from tests.cases import random_hierarchy


@pytest.mark.parametrize(
    ("name", "nodes", "leaves", "per_level"),
    [
        ("voc2012", 24, 21, (5, 21)),
        ("cityscapes", 25, 19, (7, 19)),
        ("coco", 94, 81, (3, 13, 81)),
        ("camvid", 29, 23, (7, 23)),
        ("oxford_pets", 41, 38, (2, 3, 38)),
    ],
)
def test_built_in(name, nodes, leaves, per_level):
    h = Hierarchy.load(name)
    assert (len(h), len(h.leaves)) == (nodes, leaves)
    assert tuple(map(len, h.levels)) == per_level
    assert h.title == name


def test_asking():
    h = Hierarchy.from_dict({"animal": ["bird", {"dog": ["husky", "poodle"]}], "vehicle": {"car": None}, "sky": None})
    assert h.names == ("animal", "bird", "dog", "husky", "poodle", "vehicle", "car", "sky")
    assert h.leaves == ("bird", "husky", "poodle", "car", "sky")
    assert h.parent("husky") == "dog"
    assert h.parent("sky") is None
    assert h.children("animal") == ("bird", "dog")
    assert h.children("bird") == ()
    assert h.siblings("animal") == ("vehicle", "sky")
    assert h.siblings("car") == ()
    assert h.path("poodle") == ("animal", "dog", "poodle")
    assert h.levels == (
        ("animal", "vehicle", "sky"),
        ("bird", "dog", "car", "sky"),
        ("bird", "husky", "poodle", "car", "sky"),
    )
    assert h.is_leaf("bird")
    assert not h.is_leaf("dog")
    with pytest.raises(HierarchyError, match=r"'brid' is not in hierarchy \(did you mean 'bird'\?\)"):
        h.parent("brid")


def test_drawing():
    h = Hierarchy.from_dict({"a": {"b": ["c"]}, "d": None}, title="small")
    assert h.tree() == "small  (4 nodes, 2 leaves, 3 levels)\n├─ a\n│  └─ b\n│     └─ c\n└─ d"


def test_yaml_round_trip_of_random_trees():
    rng = random.Random(0)
    for _ in range(100):
        h = random_hierarchy(rng, 30)
        assert Hierarchy.from_yaml(h.to_yaml()) == h
        assert Hierarchy.from_dict(h.to_dict()) == h


def test_thousands_of_nodes_and_any_depth():
    deep: dict = {"n0": None}
    for i in range(1, 3000):
        deep = {f"n{i}": deep}
    h = Hierarchy.from_dict(deep)
    assert h.height == 3000
    assert len(h.tree().splitlines()) == 3001
    assert len(h.path("n0")) == 3000


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("", "the hierarchy is empty"),
        ("{}", "the hierarchy is empty"),
        ("a: [b, b]", "'b' stands twice"),
        ("a: [b]\nc: [b]", "'b' stands twice"),
        ("a: [b]\na: [c]", "line 2: 'a' stands twice"),
        ("person: [person]", "'person' stands under itself"),
        ("traffic light:\ntraffic_light:", "same name in rules"),
        ("a: &x {b: *x}", "'b' contains itself"),
        ("&top {a: *top}", "'a' contains itself"),
        ("no: [b]", "at the top level was read as False, a boolean"),
        ("a: [yes]", "under 'a' was read as True, a boolean"),
        ("a: [1]", "under 'a' was read as 1, a number"),
        ("a: [[b]]", "under 'a' was read as .*, a list"),
        ('"a\\nb": [c]', "cannot be printed"),
        ("a: [1.5]", "under 'a' was read as 1.5, a number"),
        ("a: [~]", "under 'a' was read as nothing"),
        ("a: ['']", "under 'a' is empty"),
        ("a: 3", "'a' is 3"),
        ("a: b", "'a' is 'b'"),
        ("just text", "the hierarchy is 'just text'"),
        ("a: []", "'a' is a group without members"),
        ("a: [b", "line 1, column 6: not readable as YAML"),
        ("a: !!python/object/apply:os.system [ls]", "not readable as YAML"),
    ],
)
def test_refused_with_the_node(yaml, message, tmp_path):
    with pytest.raises(HierarchyError, match=message):
        Hierarchy.from_yaml(yaml)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml, "utf-8")
    with pytest.raises(HierarchyError, match="mine.yaml: "):
        Hierarchy.load(path)


def test_unknown_name():
    with pytest.raises(HierarchyError, match=r"'voc2021' is neither a file nor a built-in.*did you mean 'voc2012'"):
        Hierarchy.load("voc2021")


def test_a_file(tmp_path):
    path = tmp_path / "street.yaml"
    path.write_text("road:\nvehicle: [car, bus]\n", "utf-8")
    h = Hierarchy.load(path)
    assert h.title == "street"
    assert h.names == ("road", "vehicle", "car", "bus")
