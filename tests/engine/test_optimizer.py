"""The optimiser as it runs on CUDA, whose fused calls torch also has on a CPU."""

import copy

import pytest
import torch

from logicdiag.engine.config import OptimizerConfig
from logicdiag.engine.optimizer import Optimizer
from logicdiag.plan import moved
from tests.models.tester import built

CONFIGS = {
    "sgd": OptimizerConfig(clip=0.5),
    "adamw": OptimizerConfig(name="adamw"),
    "plain": OptimizerConfig(momentum=0),
}


def made(name, device, order=torch.contiguous_format):
    model = built(encoder="small", decoder_channels=8).to(memory_format=order)
    return model, Optimizer([model], CONFIGS[name], 10, "fp32", device)


def take(model, optimizer, step):
    """A step along gradients that depend on its number alone."""
    g = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=g))
    optimizer.step(step, moved(optimizer.plan(step), torch.device("cpu")))
    assert all(parameter.grad is None for parameter in model.parameters())


def close(one, other):
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_fused_steps_with_rates_on_the_device_are_the_steps(name):
    (plain, one), (fused, other) = made(name, "cpu"), made(name, "cuda")
    start = copy.deepcopy(plain)
    for step in range(4):
        take(plain, one, step)
        take(fused, other, step)
        close(plain, fused)
    with pytest.raises(AssertionError):
        close(plain, start)
    assert all(isinstance(group["lr"], torch.Tensor) for group in other.inner.param_groups)
    assert all(isinstance(group["lr"], float) for group in one.inner.param_groups)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("devices", [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
def test_a_state_goes_from_one_kind_of_device_to_another(name, devices):
    """Its values go along; how they are computed, and in which order of memory, is the new device's."""
    last = {"cpu": torch.contiguous_format, "cuda": torch.channels_last}
    (model, optimizer), (moved_to, resumed) = (made(name, device, last[device]) for device in devices)
    for step in range(2):
        take(model, optimizer, step)
    moved_to.load_state_dict(model.state_dict())
    how = [{key: group[key] for key in ("fused", "foreach")} for group in resumed.inner.param_groups]
    state = copy.deepcopy(optimizer.state_dict())
    assert all(group["lr"] == CONFIGS[name].lr for group in state["inner"]["param_groups"])
    resumed.load_state_dict(state)
    assert how == [{key: group[key] for key in ("fused", "foreach")} for group in resumed.inner.param_groups]
    for parameter, values in resumed.inner.state.items():
        assert all(value.stride() == parameter.stride() for value in values.values() if value.dim())
    for step in (2, 3):
        take(model, optimizer, step)
        take(moved_to, resumed, step)
    close(model, moved_to)


def test_with_a_loss_scale_nothing_is_fused():
    """A step that the scale skips must leave the momentum alone, which torch's fused SGD does not."""
    model = built(encoder="small", decoder_channels=8)
    config = OptimizerConfig(clip=None)
    assert Optimizer([model], config, 10, "bf16", "cuda").fused
    optimizer = Optimizer([model], config, 10, "fp16", "cpu")
    assert not optimizer.fused
    for value in (torch.inf, 1.0):
        before = [parameter.clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            optimizer.backward((parameter * value).sum())
        optimizer.step(0, {})
        moved_at_all = any((a != b).any() for a, b in zip(before, model.parameters(), strict=True))
        assert moved_at_all == (value == 1.0)
        assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_schedule_that_begins_anew():
    model = built(encoder="small", decoder_channels=8)
    config = OptimizerConfig(lr=1.0, power=1.0)
    staged = Optimizer([model], config, 10, "fp32", "cpu", starts=(0, 2, 6))
    assert [staged.rate(step) for step in range(10)] == [1, 0.5, 1, 0.75, 0.5, 0.25, 1, 0.75, 0.5, 0.25]
    warm = Optimizer([model], OptimizerConfig(lr=1.0, power=0.0, warmup=2), 10, "fp32", "cpu", starts=(0, 4))
    assert [warm.rate(step) for step in range(6)] == [0.5, 1, 1, 1, 0.5, 1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_an_optimiser_forgets_how_it_was_moving(name, device):
    (model, optimizer), (fresh, other) = made(name, device), made(name, device)
    take(model, optimizer, 0)
    take(model, optimizer, 1)
    fresh.load_state_dict(model.state_dict())
    optimizer.restart()
    for step in (2, 3):
        take(model, optimizer, step)
        take(fresh, other, step)
        close(model, fresh)


def test_heads_learn_as_decoders_do():
    model, head = built(encoder="small", decoder_channels=8), torch.nn.Linear(2, 2)
    optimizer = Optimizer([model], OptimizerConfig(), 10, "fp32", "cpu", [head])
    (decoder,) = (group for group in optimizer.inner.param_groups if group["name"] == "decoder")
    assert any(parameter is head.weight for parameter in decoder["params"])
    assert any(parameter is head.weight for parameter in optimizer.parameters)
