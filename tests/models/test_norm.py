"""Batch norm shared by ranks equals one process with the whole batch."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from logicdiag.models import share_batch_norm
from logicdiag.models.norm import SharedBatchNorm
from logicdiag.models.norm_act import AppliedReLU
from logicdiag.models.torchvision_shim import import_timm
from tests.models.tester import built, images

WORLD = 2
CUTS = (3, 1)  # how many of the five images rank 0 has


class NormAct(nn.BatchNorm2d):
    """Batch norm with an activation inside, as timm has it."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.act = nn.SiLU()

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self.act(super().forward(input))
        return out


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 4, 1),
        NormAct(4),
        nn.Conv2d(4, 4, 1),
        nn.BatchNorm2d(4, momentum=None, affine=False),
    ).double()
    nn.init.uniform_(model[1].weight, 0.5, 2.0)
    return model


def step(model: nn.Module, x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    out = model(x)
    (out.square() * weights).sum().backward()
    with torch.no_grad():
        model(x + 1)  # a second batch for the running statistics
    return {
        "out": out.detach(),
        "input grad": x.grad,
        **{f"grad {name}": p.grad for name, p in model.named_parameters()},
        **{f"buffer {name}": b.clone() for name, b in model.named_buffers()},
        "eval": model.eval()(x).detach(),
    }


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, 6, 7, generator=generator, dtype=torch.float64) * 3 + 2
    return x, torch.rand(5, 4, 4, 5, generator=generator, dtype=torch.float64)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    x, weights = data()
    for cut in CUTS:
        mine = slice(0, cut) if rank == 0 else slice(cut, 5)
        model = share_batch_norm(network())
        assert sum(isinstance(m, SharedBatchNorm) for m in model.modules()) == 3
        torch.save(step(model, x[mine], weights[mine]), f"{folder}/{cut}-{rank}.pth")
    whole = share_batch_norm(built(encoder="small").train())
    torch.save(whole(images(2, 48, 48)[rank : rank + 1]).detach(), f"{folder}/model-{rank}.pth")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what two processes wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(worker, args=(str(folder),), nprocs=WORLD)
    return folder


@pytest.mark.parametrize("cut", CUTS)
def test_two_ranks_equal_one_process(ranks: Path, cut: int) -> None:
    first, second = (torch.load(ranks / f"{cut}-{rank}.pth", weights_only=True) for rank in range(WORLD))
    for name, expected in step(network(), *data()).items():
        if name in ("out", "input grad", "eval"):
            torch.testing.assert_close(torch.cat([first[name], second[name]]), expected)
        elif name.startswith("grad"):
            torch.testing.assert_close(first[name] + second[name], expected)
        else:
            torch.testing.assert_close(first[name], expected)
            torch.testing.assert_close(second[name], expected)


def test_one_image_on_each_rank_equals_a_batch_of_two(ranks: Path) -> None:
    halves = [torch.load(ranks / f"model-{rank}.pth", weights_only=True) for rank in range(WORLD)]
    together = built(encoder="small").train()(images(2, 48, 48)).detach()
    torch.testing.assert_close(torch.cat(halves), together, rtol=1e-3, atol=1e-4)


def test_one_process_keeps_its_batch_norm() -> None:
    model = network()
    assert share_batch_norm(model) is model
    assert not any(isinstance(m, SharedBatchNorm) for m in model.modules())


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A group of one rank that says it has two, so that norms are converted here."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_names_weights_and_timm_s_activations_are_kept() -> None:
    import_timm()
    model = built(encoder="tf_efficientnet_lite0", decoder_channels=16)
    x, before = images(2, 48, 48), OrderedDict(model.state_dict())
    expected = model.eval()(x).detach()
    shared = share_batch_norm(model)
    assert not any(isinstance(m, nn.BatchNorm2d | AppliedReLU) for m in shared.modules())
    assert list(shared.state_dict()) == list(before)
    torch.testing.assert_close(shared(x).detach(), expected)
    assert all(shared.state_dict()[key].data_ptr() == value.data_ptr() for key, value in before.items())


@pytest.mark.usefixtures("alone")
def test_half_precision_keeps_its_type_and_float32_statistics() -> None:
    norm = share_batch_norm(nn.Sequential(nn.BatchNorm2d(3)))
    x = (torch.randn(4, 3, 8, 8) + 100).bfloat16()
    out = norm(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(norm[0].running_var, 0.9 + 0.1 * x.float().transpose(0, 1).flatten(1).var(1))
