"""The model: heads, decoder, sizes, batches of one, precision."""

import pytest
import torch
from torch import nn

from logicdiag.errors import OptionError
from logicdiag.models.decoder import Decoder, ImagePooling
from logicdiag.models.resize import resize
from tests.models.tester import HIERARCHY, built, images


def test_heads():
    logits = torch.randn(2, len(HIERARCHY), 3, 4)
    model = built(encoder="small")
    assert (model.head, model.channels) == ("hierarchical", len(HIERARCHY.names))
    torch.testing.assert_close(model.probs(logits), logits.sigmoid())
    torch.testing.assert_close(model.leaf_logits(logits), logits[:, list(HIERARCHY.leaf_indices)])
    flat = built(encoder="small", head="flat")
    assert (flat.head, flat.channels) == ("flat", len(HIERARCHY.leaves))
    leaves = logits[:, : flat.channels]
    torch.testing.assert_close(flat.probs(leaves), leaves.softmax(1))
    assert flat.leaf_logits(leaves) is leaves
    torch.testing.assert_close(flat.leaf_probs(leaves), leaves.softmax(1))
    torch.testing.assert_close(model.leaf_probs(logits), logits[:, list(HIERARCHY.leaf_indices)].sigmoid())
    by_path = built(encoder="small", decision="path")
    sums = [logits[:, list(HIERARCHY.path_indices(leaf))].sum(1) for leaf in HIERARCHY.leaf_indices]
    torch.testing.assert_close(by_path.leaf_logits(logits), torch.stack(sums, 1))
    torch.testing.assert_close(by_path.leaf_probs(logits), torch.stack(sums, 1).softmax(1))
    by_tree = built(encoder="small", decision="tree")
    torch.testing.assert_close(by_tree.leaf_logits(logits).exp(), by_tree.leaf_probs(logits))
    assert by_path.state_dict().keys() == by_tree.state_dict().keys() == model.state_dict().keys()


def test_logits_with_the_features_they_are_made_of():
    model, image = built(encoder="small", decoder_channels=8).eval(), images(2, 40, 32)
    logits, features = model.with_features(image)
    torch.testing.assert_close(logits, model(image))
    assert features.shape == (2, model.width, 10, 8)
    torch.testing.assert_close(resize(model.classifier(features), (40, 32)), logits)


def test_flat_head_gives_one_channel_per_leaf():
    assert built(encoder="small", head="flat").eval()(images(1, 40, 32)).shape == (1, len(HIERARCHY.leaves), 40, 32)


def test_probabilities_of_half_precision_logits_are_float32():
    model = built(encoder="small")
    near_one = model.probs(torch.full((1, model.channels), 8.0, dtype=torch.bfloat16))
    assert near_one.dtype == torch.float32
    assert 0.999 < near_one.max() < 1


@pytest.mark.parametrize(("given", "expected"), [(None, 0.0), (-2.0, -2.0)])
def test_head_bias(given, expected):
    model = built(encoder="small", head_bias=given).eval()
    assert (model.classifier.bias == expected).all()
    with torch.no_grad():
        assert abs(float(model(images(2, 64, 64)).mean()) - expected) < 0.5


@pytest.mark.parametrize("size", [(513, 513), (769, 96), (96, 100), (32, 32)])
def test_any_size(size):
    with torch.no_grad():
        assert built(encoder="small").eval()(images(1, *size)).shape[-2:] == size


def test_upsampling_keeps_corners_of_sides_of_k_strides_plus_one():
    x = torch.randn(1, 1, 5, 5)
    up = resize(x, (65, 65))
    torch.testing.assert_close(up[..., ::16, ::16], x)


def test_training_with_a_single_image():
    model = built(encoder="small").train()
    pooling = next(m for m in model.modules() if isinstance(m, ImagePooling))
    before = pooling.norm.running_var.clone()
    model(images(1, 64, 64)).mean().backward()
    assert pooling.conv.weight.grad.isfinite().all()
    assert torch.equal(pooling.norm.running_var, before)
    model(images(2, 64, 64))
    assert not torch.equal(pooling.norm.running_var, before)


def test_image_pooling_is_the_mean_everywhere():
    pooling = ImagePooling(4, 6).eval()
    x = torch.randn(2, 4, 5, 7)
    out = pooling(x)
    assert torch.equal(out, out[..., :1, :1].expand_as(out))
    permuted = x.flatten(2)[..., torch.randperm(35)].view_as(x)
    torch.testing.assert_close(pooling(permuted), out)


@pytest.mark.parametrize(("output_stride", "rates"), [(16, (6, 12, 18)), (8, (12, 24, 36))])
def test_rates_double_at_stride_8(output_stride, rates):
    branches = built(encoder="resnet18", output_stride=output_stride, decoder_channels=8).decoder.aspp.branches
    assert tuple(branch[0].dilation[0] for branch in branches[1:4]) == rates


def test_dropout_is_off_unless_asked_for_and_off_in_eval():
    assert not any(isinstance(m, nn.Dropout2d) for m in Decoder(8, 8, 8).modules())
    model = built(encoder="small", dropout=0.5)
    x = images(2, 64, 64)
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


def test_channels_last_and_autocast_agree_with_plain_float32():
    model, x = built(encoder="small").eval(), images(2, 65, 50)
    with torch.no_grad():
        plain = model(x)
        last = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
        torch.testing.assert_close(last, plain, rtol=1e-4, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain, rtol=0.05, atol=0.02)


def test_channels_last_lasts():
    """Features that change their order of memory on the way are copied; only the logits are wanted in the other one."""
    model = built(encoder="small").to(memory_format=torch.channels_last)
    seen = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, args, name=name: seen.append((name, args[0])))
    logits = model(images(2, 65, 50))
    others = [name for name, x in seen if not x.is_contiguous(memory_format=torch.channels_last)]
    assert others == ["encoder.body.stem.0"]  # the image itself
    assert logits.is_contiguous()


def test_decoder_channels():
    assert built(encoder="small").classifier.in_channels == 64
    assert built(encoder="small", decoder_channels=24).classifier.in_channels == 24


def test_the_seed_decides_the_weights():
    first, second = built(encoder="small"), built(encoder="small")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "flatt"}, "model.head is 'flatt', expected one of hierarchical, flat .did you mean 'flat'"),
        ({"dropout": 1.0}, "model.dropout is 1.0, expected"),
        ({"decoder_channels": 0}, "model.decoder_channels is 0, expected at least 1"),
    ],
)
def test_refused(options, message):
    with pytest.raises(OptionError, match=message):
        built(encoder="small", **options)
