"""Batch norms of a model: by the kernels where they apply, and by torch, with the same result."""

import copy
import pickle

import pytest
import torch
from torch import nn

from logicdiag.models import AveragedTeacher, norm_act
from logicdiag.models.encoder import build_encoder
from logicdiag.models.norm_act import AppliedReLU, FusedBatchNorm2d, fuse_norms, restore_norms
from logicdiag.models.torchvision_shim import import_timm
from tests.models.tester import built, images

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LITE = "tf_efficientnet_lite0"


@pytest.fixture
def calls(monkeypatch):
    """The kernels are taken on any device; how often, and for which activations."""
    kernels = pytest.importorskip("logicdiag.kernels.triton_norm", reason="needs Triton", exc_type=ImportError)
    seen = []

    def counted(name):
        kernel = getattr(kernels, name)

        def call(*args):
            seen.append((name, args[-1]))
            return kernel(*args)

        return call

    for name in ("batch_norm", "normalise"):
        monkeypatch.setattr(kernels, name, counted(name))
    monkeypatch.setattr(norm_act, "fuses", lambda device: True)
    if DEVICE.type != "cuda":  # the interpreter takes its time for each program
        few = {"NARROW": 512, "WIDE": 512, "PARTIAL": 1 << 13, "SUM_PROGRAMS": 4, "SUM_TILE": 1 << 15, "AHEAD": 1}
        for name, value in (few | {"PROGRAMS": 4, "TILE": 1 << 16}).items():
            monkeypatch.setattr(kernels, name, value)
    return seen


def norm(channels: int = 8, **options: object) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(channels, **options).to(DEVICE)
    for tensor in made.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 2.0)
    return made


def timm_norm(act: type[nn.Module] = nn.ReLU6, **options: object) -> nn.Module:
    return import_timm().layers.BatchNormAct2d(8, act_layer=act, **options).to(DEVICE)


def ordered(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(memory_format=torch.channels_last)


def assert_same_step(fused: nn.Module, plain: nn.Module, x: torch.Tensor) -> None:
    """The result, the gradients and the statistics, and what they do in evaluation."""
    grad, inputs = torch.randn_like(x), [x.clone().requires_grad_() for _ in range(2)]
    outs = [model(given) for model, given in zip((fused, plain), inputs, strict=True)]
    for out in outs:
        out.backward(grad)
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    for (name, mine), theirs in zip(fused.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(fused.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("plain", "act"),
    [
        (norm(), "none"),
        (nn.Sequential(norm()), "none"),
        (nn.Sequential(norm(momentum=0.01, eps=1e-3), nn.ReLU(inplace=True)), "relu"),
        (timm_norm(), "relu6"),
        (timm_norm(nn.ReLU), "relu"),
        (timm_norm(apply_act=False), "none"),
    ],
    ids=["norm", "in a sequence", "before a ReLU", "timm ReLU6", "timm ReLU", "timm none"],
)
def test_a_step(calls, plain, act):
    fused = fuse_norms(copy.deepcopy(plain))
    for _ in range(2):
        assert_same_step(fused.train(), plain.train(), 3 * ordered(3, 8, 5, 4) + 1)
    assert calls == [("batch_norm", act), ("normalise", act)] * 2


def test_a_pooled_map(calls):
    """Which is in any order of memory, as it has one pixel."""
    plain = norm()
    assert_same_step(fuse_norms(copy.deepcopy(plain)), plain, torch.randn(6, 8, 1, 1, device=DEVICE))
    assert len(calls) == 2


def test_a_model_has_the_same_features_and_gradients(calls):
    torch.manual_seed(0)
    plain = restore_norms(built(encoder="small", decoder_channels=16)).to(DEVICE, memory_format=torch.channels_last)
    fused = fuse_norms(copy.deepcopy(plain))
    exact = copy.deepcopy(plain).double()
    x = images(2, 48, 40).to(DEVICE, memory_format=torch.channels_last)
    for model in (fused, exact):
        model.train()(x.to(model.classifier.weight.dtype)).square().mean().backward()
    assert len(calls) == sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    assert {act for _, act in calls} == {"none", "relu"}
    largest = max(parameter.grad.abs().max().item() for parameter in exact.parameters())
    for (name, mine), theirs in zip(fused.named_parameters(), exact.parameters(), strict=True):
        scale = theirs.grad.abs().max().item() + 1e-3 * largest  # some are 0, for another batch norm takes them away
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-2, atol=1e-2 * scale, msg=name)
    for (name, mine), theirs in zip(fused.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-3, atol=1e-4, msg=name)


def test_an_encoder_in_evaluation(calls):
    torch.manual_seed(0)
    plain = build_encoder(LITE).to(DEVICE, memory_format=torch.channels_last).eval()
    fused = fuse_norms(copy.deepcopy(plain))
    x = images(1, 32, 40).to(DEVICE, memory_format=torch.channels_last)
    with torch.no_grad():
        for mine, theirs in zip(fused(x), plain(x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert len(calls) == sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    assert {act for _, act in calls} == {"none", "relu6"}


def test_names_parameters_and_modules_stay_and_come_back():
    model = restore_norms(built(encoder=LITE, decoder_channels=16))
    before, modules = model.state_dict(), dict(model.named_modules())
    classes = [type(module) for module in modules.values()]
    after = fuse_norms(model).state_dict()
    assert list(before) == list(after)
    assert all(before[key].data_ptr() == after[key].data_ptr() for key in before)
    assert all(modules[name] is module for name, module in model.named_modules())
    norms = [module for module in modules.values() if isinstance(module, nn.BatchNorm2d)]
    assert all(type(module) is FusedBatchNorm2d for module in norms)
    assert {module.act_inside for module in norms} == {"none", "relu6"}
    restore_norms(model)
    assert [type(module) for module in modules.values()] == classes


def test_what_torch_and_timm_convert_keeps_its_activations():
    """As on several GPUs; `SyncBatchNorm` has no CPU side, but for evaluation."""
    model = built(encoder=LITE, decoder_channels=16).to(DEVICE).eval()
    x = images(1, 48, 48).to(DEVICE)
    expected, names = model(x), list(model.state_dict())
    shared = import_timm().layers.convert_sync_batchnorm(restore_norms(model))
    assert sum(isinstance(module, nn.SyncBatchNorm) for module in shared.modules()) == 62
    assert list(shared.state_dict()) == names
    torch.testing.assert_close(shared(x), expected)


def test_models_are_built_with_it():
    """ReLUs of the decoder follow batch norms, but for the one of the pooled image."""
    model = built(encoder=LITE, decoder_channels=16)
    assert sum(isinstance(module, FusedBatchNorm2d) for module in model.modules()) == 62
    assert sum(type(module) is nn.ReLU for module in model.decoder.modules()) == 1
    assert sum(type(module) is AppliedReLU for module in model.decoder.modules()) == 8


def test_a_copy_has_its_own(calls):
    first = fuse_norms(nn.Sequential(norm(), nn.ReLU())).eval()
    x = ordered(1, 8, 5, 5)
    with torch.no_grad():
        for second in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
            torch.testing.assert_close(second(x), first(x))
            nn.init.zeros_(second[0].weight)
            nn.init.zeros_(second[0].bias)
            assert first(x).any()
            assert not second(x).any()
    assert calls == [("normalise", "relu")] * 8


def test_a_teacher_follows_statistics(calls):
    student = fuse_norms(nn.Sequential(norm(), nn.ReLU()))
    teacher = AveragedTeacher(student, 0.0)
    x = ordered(2, 8, 5, 5)
    student(x).sum().backward()
    assert student[0].num_batches_tracked == 1
    assert teacher.model[0].num_batches_tracked == 0
    teacher.update(student, 0)
    for mine, theirs in zip(teacher.model.buffers(), student.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        assert torch.equal(teacher(x), student.eval()(x))
    assert calls == [("batch_norm", "relu"), ("normalise", "relu"), ("normalise", "relu")]


def test_autocast(calls):
    plain = norm()
    fused, x = fuse_norms(copy.deepcopy(plain)), ordered(2, 8, 6, 6).bfloat16()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        out, expected = fused(x), plain(x)
    assert len(calls) == 1
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("why", "x"),
    [
        ("another order of memory", torch.randn(2, 8, 5, 5)),
        ("float64", torch.randn(2, 8, 5, 5).double().to(memory_format=torch.channels_last)),
        ("no image", torch.randn(0, 8, 5, 5).to(memory_format=torch.channels_last)),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_torch_does_the_rest(calls, why, x, training):
    plain, x = nn.Sequential(norm(), nn.ReLU()).to(x.dtype).train(training), x.to(DEVICE)
    fused = fuse_norms(copy.deepcopy(plain))
    assert torch.equal(fused(x), plain(x))
    assert torch.equal(fused[0].running_var, plain[0].running_var)
    assert not calls, why


@pytest.mark.parametrize("options", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_torch_does_other_kinds(calls, options):
    plain, x = norm(**options), ordered(2, 8, 4, 4)
    fused = fuse_norms(copy.deepcopy(plain))
    assert torch.equal(fused(x), plain(x))
    assert not calls


def test_frozen_statistics_have_torch_s_gradient(calls):
    plain, x = nn.Sequential(norm(), nn.ReLU()).eval(), ordered(2, 8, 4, 4).requires_grad_()
    fused = fuse_norms(copy.deepcopy(plain))
    assert torch.equal(*(torch.autograd.grad(model(x).sum(), x)[0] for model in (fused, plain)))
    assert not calls


def test_mistakes_are_torch_s(calls):
    fused = fuse_norms(norm())
    for x in (ordered(1, 8, 1, 1), ordered(2, 9, 5, 5), ordered(2, 8, 5, 5).long(), ordered(2, 8, 5, 5)[0]):
        with pytest.raises((RuntimeError, ValueError)):
            fused(x)
    assert not calls


@pytest.mark.skipif(DEVICE.type != "cpu", reason="there is a GPU")
@pytest.mark.parametrize("plain", [nn.Sequential(norm(), nn.ReLU()), timm_norm()])
def test_on_a_cpu_torch_does_all(plain):
    x = ordered(2, 8, 5, 5)
    assert torch.equal(fuse_norms(copy.deepcopy(plain))(x), plain(x))


@pytest.mark.parametrize("plain", [nn.Sequential(norm(), nn.ReLU()), timm_norm()], ids=["torch", "timm"])
def test_compilers_see_torch_s(calls, plain):
    x = ordered(2, 8, 5, 5)
    compiled = torch.compile(fuse_norms(copy.deepcopy(plain)), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), plain(x))
    assert not calls


def test_a_relu_of_several_places_is_left_alone():
    relu = nn.ReLU()
    plain = nn.Sequential(norm(), relu, nn.Conv2d(8, 8, 1).to(DEVICE), relu)
    fused, x = fuse_norms(copy.deepcopy(plain)), ordered(2, 8, 3, 3)
    assert [type(module) for module in fused] == [FusedBatchNorm2d, nn.ReLU, nn.Conv2d, nn.ReLU]
    torch.testing.assert_close(fused(x), plain(x))


@pytest.mark.parametrize(
    "made", [nn.BatchNorm1d(8), nn.SyncBatchNorm(8), timm_norm(nn.SiLU), timm_norm(drop_layer=nn.Dropout)], ids=str
)
def test_others_are_left_alone(made):
    before = type(made)
    assert type(fuse_norms(made)) is before
