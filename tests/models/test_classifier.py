"""Classifiers of timm with their last layer; files and packages are made here."""

import pytest
import torch

from logicdiag.errors import OptionError, WeightsError
from logicdiag.models import ModelConfig
from logicdiag.models.classifier import build_classifier, class_names
from logicdiag.models.torchvision_shim import import_timm
from tests.models.test_weights import fake_package
from tests.models.tester import built

NAME = "mobilenetv3_small_050"


@pytest.fixture(scope="module")
def timm():
    return import_timm()


@pytest.fixture(scope="module")
def source(timm):
    torch.manual_seed(0)
    return timm.create_model(NAME, num_classes=9).eval()


def of(weights, encoder=NAME, base=None):
    return build_classifier(ModelConfig(encoder, weights=str(weights)), base)


@pytest.mark.parametrize(
    "spell",
    [
        lambda s: s,
        lambda s: {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {k: v for k, v in s.items() if not k.endswith("num_batches_tracked")},
    ],
)
def test_a_file(source, spell, tmp_path):
    """Images are normalised as the encoder's are; there are as many classes as the file has."""
    torch.save(spell(source.state_dict()), tmp_path / "w.pth")
    before = torch.get_rng_state()
    made = of("w.pth", base=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert made.classes == 9
    image = torch.rand(1, 3, 40, 64)
    mean, std = (torch.tensor(source.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        assert torch.equal(made(image), source((image - mean) / std))


def test_lite(timm, tmp_path, monkeypatch):
    """The tensors in order under other names; the normalisation is the package's own."""
    classifier = timm.create_model("tf_efficientnet_lite0").state_dict()
    names = ["_conv_stem.weight", *(f"_n{i}.{key.rpartition('.')[2]}" for i, key in enumerate(classifier) if i)]
    fake_package(tmp_path, dict(zip(names, classifier.values(), strict=True)))
    monkeypatch.syspath_prepend(tmp_path)
    made = of("lite", "tf_efficientnet_lite0")
    assert made.classes == 1000
    assert made.mean.flatten().tolist() == pytest.approx([127 / 255] * 3)
    state = made.body.state_dict()
    assert all(torch.equal(state[key], value) for key, value in classifier.items())


@pytest.mark.parametrize("classes", [9, 0])
def test_hub(timm, source, monkeypatch, classes):
    create = timm.create_model
    answer = source if classes else create(NAME, num_classes=0)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: answer)
    if classes:
        assert of("hub").body is source
        assert of(f"hub:{NAME}.lamb_in1k").classes == 9
    else:
        with pytest.raises(WeightsError, match="model.weights is 'hub', which holds no classifier"):
            of("hub")
    with pytest.raises(WeightsError, match="'hub:resnet18', expected weights of the encoder"):
        of("hub:resnet18")


def test_weights_without_a_classifier(source, tmp_path):
    state = {k: v for k, v in source.state_dict().items() if not k.startswith("classifier.")}
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=f"w.pth: holds no classifier of {NAME} \\(classifier.weight\\), expected"):
        of(tmp_path / "w.pth")


def test_a_model_of_segmentation_is_no_classifier(tmp_path):
    torch.save(built(encoder="small").state_dict(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=f"w.pth: holds a model of segmentation, expected {NAME} with"):
        of(tmp_path / "w.pth")


def test_weights_of_another_model(source, tmp_path):
    torch.save({**source.state_dict(), "odd": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"w.pth: does not fit the model; unexpected \(1\): odd$"):
        of(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        (ModelConfig("small", weights="hub"), OptionError, "model.encoder is 'small', which was never trained"),
        (ModelConfig(NAME), WeightsError, "model.weights is null, .* expected hub, lite or a file"),
        (ModelConfig("resnet81", weights="hub"), OptionError, "model.encoder is 'resnet81', .* .did you mean 'resnet"),
        (ModelConfig(NAME, weights="w.pht"), WeightsError, "model.weights is 'w.pht', expected hub"),
    ],
)
def test_what_is_no_classifier(config, error, says):
    with pytest.raises(error, match=says):
        build_classifier(config)


def test_one_size_alone(timm, tmp_path):
    name = "vit_tiny_patch16_224"
    torch.save(timm.create_model(name, num_classes=2).state_dict(), tmp_path / "w.pth")
    with pytest.raises(OptionError, match=f"'{name}', which takes images of 224 x 224 pixels and no others"):
        of(tmp_path / "w.pth", name)


def test_names():
    names = class_names(1000)
    assert names is not None
    assert len(names) == 1000
    assert names[831] == ("studio couch", "day bed")
    assert class_names(999) is None
