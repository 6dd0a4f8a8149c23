"""Which classes of a classifier are which concept: what a person may write, and what is refused."""

from pathlib import Path

import pytest

from logicdiag import Hierarchy
from logicdiag.engine.classes import Siblings, check_classes, read_classes, siblings_among
from logicdiag.errors import ConfigError

H = Hierarchy.from_dict(
    {"animal": {"pet": ["cat", "dog"], "bird": None}, "seat": ["chair", "sofa"], "sky": None, "one": ["only"]}, "mine"
)
PETS = {"cat": 281, "dog": 151}
SHIPPED = Path(__file__).parents[2] / "configs" / "experiments" / "data" / "voc-animals-imagenet.yaml"


def read(tmp_path, text, count=1000):
    (tmp_path / "my.yaml").write_text(text, "utf-8")
    return read_classes(tmp_path / "my.yaml", H, count)


def test_numbers_ranges_and_names(tmp_path):
    """In the order of the hierarchy; a class that is named twice counts once."""
    found = read(
        tmp_path,
        """
        sofa: Studio_Couch
        dog: [151-153, " 200 - 201 ", "151"]
        cat: [tabby, 281, SIAMESE cat, egyptian_cat]
        chair: [throne, 423]
        """,
    )
    assert found == {"cat": (281, 284, 285), "dog": (151, 152, 153, 200, 201), "chair": (423, 857), "sofa": (831,)}
    assert list(found) == ["cat", "dog", "chair", "sofa"]


def test_inner_nodes_and_their_children_are_different_siblings():
    found = check_classes({**PETS, "pet": "151-285", "bird": 7, "sky": 970, "seat": 831}, H, 1000, "my.yaml")
    assert siblings_among(found, H) == [
        Siblings("animal", ("pet", "bird")),
        Siblings("pet", ("cat", "dog")),
        Siblings(None, ("seat", "sky")),
    ]


def test_the_shipped_file():
    h = Hierarchy.from_dict({"animal": ["cat", "cow", "dog", "horse", "sheep"], "furniture": ["chair", "sofa"]})
    assert read_classes(SHIPPED, h, 1000) == {
        "cat": (281, 282, 283, 284, 285),
        "cow": (345, 346, 347),
        "dog": tuple(range(151, 269)),
        "horse": (339, 603),
        "sheep": (348, 349),
        "chair": (423, 559, 765, 857),
        "sofa": (831,),
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "my.yaml: names no concept, expected such as cat"),
        ({**PETS, "brid": 7}, "my.yaml: 'brid' is no concept of mine (did you mean 'bird'?)"),
        ({**PETS, 7: 7}, "my.yaml: 7 is no concept of mine"),
        ({"cat": []}, "my.yaml: cat has no class, expected such as"),
        ({"cat": None}, "my.yaml: cat has no class, expected such as"),
        ({"cat": True}, "my.yaml: cat: True is no class, expected a number, a range such as 151-268, or a name"),
        ({"cat": [[281]]}, "my.yaml: cat: [281] is no class, expected a number"),
        ({"cat": 2.5}, "my.yaml: cat: 2.5 is no class, expected a number"),
        ({"cat": 1000}, "my.yaml: cat: 1000 is no class, expected some of 0 to 999"),
        ({"cat": "990-1003"}, "my.yaml: cat: '990-1003' is no class, expected some of 0 to 999"),
        ({"cat": "285-281"}, "my.yaml: cat: '285-281' is no class, expected some of 0 to 999"),
        ({"cat": "taby"}, "my.yaml: cat: 'taby' is no class of ImageNet (did you mean 'tabby'?)"),
        ({"bird": "crane"}, "my.yaml: bird: 'crane' is the name of classes 134, 517; write the number"),
        ({"cat": "281-285", "dog": "285-286"}, "my.yaml: class 285 is both cat and dog, which exclude each other"),
        ({"cat": "281-285", "dog": "283-286"}, "my.yaml: classes 283-285 are both cat and dog, which exclude"),
        ({**PETS, "sofa": 831}, "sofa is there alone, and a witness tells siblings apart; add one of chair, or leave"),
        ({**PETS, "only": 1}, "only is there alone, and a witness tells siblings apart; it has none; leave it out"),
    ],
)
def test_what_is_refused(given, says):
    with pytest.raises(ConfigError) as error:
        check_classes(given, H, 1000, "my.yaml")
    assert says in str(error.value)


def test_names_of_other_classifiers_are_not_known():
    assert check_classes({"cat": 0, "dog": "1-2"}, H, 3, "my.yaml") == {"cat": (0,), "dog": (1, 2)}
    with pytest.raises(ConfigError, match="cat: 'tabby' is no number, and the names of this classifier's 3 classes"):
        check_classes({"cat": "tabby", "dog": 1}, H, 3, "my.yaml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- cat", r"my.yaml: expected keys such as cat: \[tabby, 282-285\], found the list"),
        ("cat: 1\ncat: 2\n", "my.yaml:2:1: cat stands twice"),
        ("cat: [", "my.yaml:.*: this is not YAML"),
        ("", "my.yaml: names no concept"),
    ],
)
def test_files_that_hold_none(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, text)


def test_no_such_file(tmp_path):
    (tmp_path / "imagenet.yaml").touch()
    with pytest.raises(ConfigError, match="the file of classes .*imagnet.yaml cannot be read: .*'imagenet.yaml'"):
        read_classes(tmp_path / "imagnet.yaml", H, 1000)
