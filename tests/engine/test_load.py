"""YAML and overrides -> a typed configuration; every mistake is one sentence that names its key."""

import dataclasses

import pytest
import yaml

from logicdiag.engine.config import Config
from logicdiag.engine.load import build, dump_config, load_config
from logicdiag.errors import ConfigError


@pytest.fixture
def load(tmp_path):
    def load(text, *overrides):
        path = tmp_path / "c.yaml"
        path.write_text(text, "utf-8")
        return load_config(path, overrides)

    return load


def test_an_empty_file_is_the_defaults(load):
    assert load("") == load("# nothing\n") == load("{}") == Config()
    config = Config()
    assert (config.method.name, config.psi.name, config.psi.strategy, config.model.head) == (
        "fixmatch",
        "diagnosis",
        "sampling",
        "hierarchical",
    )
    assert (config.psi.q, config.train.steps, config.optimizer.power) == (5, 40000, 0.9)


def test_nested_parts(load):
    config = load("data: {layout: scenes, views: {cutmix: 0.25}, scenes: {size: 48}}\npsi:\n  families: CD\nloss:\n")
    assert (config.data.layout, config.data.views.cutmix, config.data.scenes.size) == ("scenes", 0.25, 48)
    assert config.psi.families == "CD"
    assert config.loss == Config().loss  # null below a part: its defaults
    assert config.data.views.blur == 0.5


NUMBERS = [("1e-3", 0.001), ("1E-3", 0.001), ("1.5e-2", 0.015), (".5", 0.5), ("2", 2.0)]


@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_numbers(load, text, value):
    assert load(f"optimizer: {{lr: {text}}}").optimizer.lr == value
    found = load("", f"optimizer.lr={text}").optimizer.lr
    assert (found, type(found)) == (value, float)


def test_overrides(load):
    config = load(
        "optimizer: {lr: 0.1}\nmethod:\n",
        "optimizer.lr=0.01",
        "data.views.cutmix=0",
        "data.unlabeled=[a, b]",
        "method.ramp=[0.1, 0.5]",
        "loss.points=",
        "data.root=a=b",
        "data.val=null",
        "optimizer.lr=0.02",
    )
    assert config.optimizer.lr == 0.02  # the last one counts
    assert config.data.views.cutmix == 0.0
    assert config.data.unlabeled == ["a", "b"]
    assert config.method.ramp == (0.1, 0.5)
    assert config.loss.points is None
    assert config.data.root == "a=b"
    assert config.data.val is None


def test_values_of_several_kinds(load):
    config = load("data: {hierarchy: {animal: [cat, dog], sky: }, unlabeled: rest, scale: [1, 1.5]}")
    assert config.data.hierarchy == {"animal": ["cat", "dog"], "sky": None}
    assert config.data.unlabeled == "rest"
    assert config.data.scale == (1.0, 1.5)
    assert load("psi: {rules: ['forall x: cat(x)']}").psi.rules == ["forall x: cat(x)"]
    assert load("inference: {mode: slide, size: 64}").inference.size == 64


def test_round_trip(load):
    changes = {
        "data": {"unlabeled": ["a", "b"], "hierarchy": {"x": ["y"]}, "scale": [0.5, 1.0], "root": "dätä"},
        "model": {"encoder": "small"},
        "optimizer": {"lr": 1e-7, "clip": 1.0},
        "inference": {"mode": "slide", "size": 64},
        "train": {"val_every": 5},
    }
    config = build(Config, changes)
    text = dump_config(config)
    assert load(text) == config
    assert load(dump_config(Config())) == Config()
    plain = yaml.safe_load(text)
    assert plain.keys() == {field.name for field in dataclasses.fields(Config)}
    assert plain["data"]["scale"] == [0.5, 1.0]
    assert plain["data"]["views"]["cutmix"] == 0.5  # defaults are written down


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("optimzer: {}", "unknown key optimzer (did you mean 'optimizer'?)"),
        ("optimizer: {learning_rate: 1}", "unknown key optimizer.learning_rate; there are clip, head_lr, lr,"),
        ("data: {views: {cutmx: 1}}", "unknown key data.views.cutmx (did you mean 'cutmix'?)"),
        ("7: 1", "unknown key 7; there are data,"),
        ("optimizer: {lr: fast}", "optimizer.lr is 'fast', expected a number"),
        ("optimizer: {lr: }", "optimizer.lr is null, expected a number"),
        ("optimizer: {lr: true}", "optimizer.lr is True, expected a number"),
        ("optimizer: {lr: .nan}", "optimizer.lr is nan, expected a number"),
        ("optimizer: {lr: .inf}", "optimizer.lr is inf, expected a number"),
        ("train: {steps: 1.5}", "train.steps is 1.5, expected a whole number"),
        ("train: {steps: true}", "train.steps is True, expected a whole number"),
        ("train: {val_every: often}", "train.val_every is 'often', expected a whole number or null"),
        ("data: {labeled: 92}", "data.labeled is 92, expected text"),
        ("data: {scale: 2}", "data.scale is 2, expected a list of 2 values, each a number"),
        ("data: {scale: [1, 2, 3]}", "data.scale is the list [1, 2, 3], expected a list of 2 values, each a number"),
        ("data: {scale: [a, b]}", "data.scale is the list ['a', 'b'], expected a list of 2 values, each a number"),
        ("data: {unlabeled: [1]}", "data.unlabeled is the list [1], expected text or a list of text or null"),
        ("data: {unlabeled: {a: 1}}", "data.unlabeled is a mapping, expected text or a list of text or null"),
        ("data: 5", "data is 5, expected keys below it"),
        ("data: {views: [1]}", "data.views is the list [1], expected keys below it"),
        ("- a\n- b", "expected keys such as data: and model:, found the list ['a', 'b']"),
        ("hello", "expected keys such as data: and model:, found 'hello'"),
        ("data: {root: a}\ndata: {crop: 3}", ":2:1: data stands twice"),
        ("data:\n  crop: 3\n  crop: 4", ":3:3: crop stands twice"),
    ],
)
def test_mistakes_are_named_by_their_key(load, tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        load(text)
    message = str(caught.value)
    assert says in message
    assert message.startswith(str(tmp_path / "c.yaml"))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: {root: a", "c.yaml:1:15: this is not YAML: expected ',' or '}'"),
        ("data:\n\troot: a", "c.yaml:2:1: this is not YAML: a tab stands where YAML wants spaces"),
        ("data: 'a", "this is not YAML"),
        ("data: \x00", "this is not YAML"),
        ("data: !!python/object/apply:os.system ['true']", "this is not YAML: could not determine a constructor"),
        ("data: *x", "this is not YAML: found undefined alias"),
    ],
)
def test_not_yaml(load, text, says):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("optimizer.lr", "'optimizer.lr' is no change of a setting, expected key=value"),
        ("=3", "'=3' is no change of a setting"),
        ("optimizer.lr=[", "optimizer.lr:1:2: this is not YAML"),
        ("optimizer.momentun=1", "unknown key optimizer.momentun (did you mean 'momentum'?)"),
        ("optimizer.lr.x=1", "optimizer.lr.x cannot be set: lr is 0.1, not a part"),
        ("data..x=1", "unknown key data."),
        ("train.steps=x", "train.steps is 'x', expected a whole number"),
    ],
)
def test_wrong_overrides(load, override, says):
    with pytest.raises(ConfigError) as caught:
        load("optimizer: {lr: 0.1}", override)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{mode: slid}", "inference.mode is 'slid', expected one of .*did you mean 'slide'"),
        ("{mode: slide}", "inference.size is null, expected at least 32"),
        ("{size: 64}", "inference.size is 64, but inference.mode is whole"),
    ],
)
def test_inference_checks_itself(load, text, says):
    with pytest.raises(ConfigError, match=says):
        load(f"inference: {text}")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "camvid.yaml").write_text("")
    with pytest.raises(ConfigError, match="camvd.yaml cannot be read: No such file.*did you mean 'camvid.yaml'"):
        load_config(tmp_path / "camvd.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("data: {root: dätä}".encode("latin-1"))
    with pytest.raises(ConfigError, match="latin.yaml cannot be read: it is not UTF-8 text"):
        load_config(tmp_path / "latin.yaml")
