"""What holds for a model with any encoder; the tests of each encoder inherit it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from logicdiag import Hierarchy
from logicdiag.models import ModelConfig, Segmenter, build_model, load_weights

HIERARCHY = Hierarchy.from_dict(
    {"animal": ["bird", "cat"], "vehicle": {"car": None, "two_wheeler": ["bike"]}, "sky": None}
)


def images(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


def built(**options: object) -> Segmenter:
    torch.manual_seed(0)
    return build_model(ModelConfig(**options), HIERARCHY)  # type: ignore[arg-type]


class EncoderTester:
    encoder: str
    output_stride = 16
    decoder_channels: int | None = 32
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> Segmenter:
        return built(encoder=cls.encoder, output_stride=cls.output_stride, decoder_channels=cls.decoder_channels)

    @pytest.mark.parametrize("size", [(65, 65), (33, 50)])
    def test_logits_have_the_size_of_the_image(self, model, size):
        model.eval()
        with torch.no_grad():
            low, high = model.features(images(1, *size))
            logits = model.decode((low, high), size)
            assert torch.equal(model(images(1, *size)), logits)
        assert logits.shape == (1, len(HIERARCHY.names), *size)
        assert logits.isfinite().all()
        for features, stride in ((low, 4), (high, self.output_stride)):
            assert tuple(features.shape[-2:]) == tuple(-(-side // stride) for side in size)
        assert low.shape[1] == model.encoder.low_channels
        assert high.shape[1] == model.encoder.high_channels

    def test_gradients_reach_every_parameter(self, model):
        for module in model.train().modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.ones_(module.weight)  # some encoders start with residual branches at 0, where gradients end
        model.zero_grad()
        F.binary_cross_entropy_with_logits(model(images(2, 65, 65)), torch.rand(2, model.channels, 65, 65)).backward()
        without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        dead = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.any()]
        assert (without, dead) == ([], [])

    def test_eval_is_deterministic_and_single_images_are_apart(self, model):
        model.eval()
        with torch.no_grad():
            x = images(2, 48, 41)
            both = model(x)
            assert torch.equal(both, model(x))
            torch.testing.assert_close(model(x[:1]), both[:1], rtol=1e-3, atol=1e-4)

    def test_state_dict_round_trip(self, model, tmp_path):
        torch.save(model.state_dict(), tmp_path / "model.pth")
        other = copy.deepcopy(model)
        for tensor in other.state_dict().values():
            tensor.zero_()
        load_weights(other, str(tmp_path / "model.pth"))
        assert other.state_dict().keys() == model.state_dict().keys()
        for key, value in model.state_dict().items():
            assert torch.equal(other.state_dict()[key], value), key

    def test_parameter_groups_cover_all_once(self, model):
        groups = model.parameter_groups()
        ids = [id(p) for group in groups.values() for p in group]
        assert sorted(ids) == sorted(id(p) for p in model.parameters())
        assert set(groups) == {"encoder", "decoder"}

    def test_images_are_normalised_the_encoder_s_own_way(self, model):
        seen = []
        handle = model.encoder.body.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        x = images(1, 33, 33)
        with torch.no_grad():
            model.eval().features(x)
        handle.remove()
        mean, std = torch.tensor(self.mean).view(3, 1, 1), torch.tensor(self.std).view(3, 1, 1)
        torch.testing.assert_close(seen[0], (x - mean) / std)
