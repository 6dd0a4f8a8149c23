"""The optimiser, its schedule, and the scale that keeps half-precision gradients from vanishing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError, choose
from ..models.segmenter import Segmenter
from ..plan import Plan, Planned
from .config import OptimizerConfig

OPTIMIZERS: dict[str, Callable[[list[dict[str, object]], OptimizerConfig], torch.optim.Optimizer]] = {
    "sgd": lambda groups, c: torch.optim.SGD(groups, c.lr, c.momentum, weight_decay=c.weight_decay),
    "adamw": lambda groups, c: torch.optim.AdamW(groups, c.lr, weight_decay=c.weight_decay),
}


class Optimizer:
    """One step: set the rate, unscale, clip, move. Gradients must already be those of all processes."""

    def __init__(self, model: Segmenter, config: OptimizerConfig, steps: int, precision: str, device: str) -> None:
        choose("optimizer.name", config.name, OPTIMIZERS)
        for key in ("lr", "clip"):
            if (value := getattr(config, key)) is not None and value <= 0:
                raise ConfigError(f"optimizer.{key} is {value}, expected a number above 0")
        for key in ("head_lr", "momentum", "weight_decay", "power", "warmup"):
            if (value := getattr(config, key)) < 0:
                raise ConfigError(f"optimizer.{key} is {value}, expected 0 or more")
        self.config, self.steps = config, steps
        self.times = {"encoder": 1.0, "decoder": config.head_lr}
        found = model.parameter_groups()
        self.parameters = [parameter for parameters in found.values() for parameter in parameters]
        self.inner = OPTIMIZERS[config.name]([{"params": found[name], "name": name} for name in found], config)
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def rate(self, step: int) -> float:
        """The encoder's learning rate at a step, counted from 0."""
        c = self.config
        rate: float = c.lr * (1 - step / self.steps) ** c.power
        return rate * min(1.0, (step + 1) / c.warmup) if c.warmup else rate

    def plan(self, step: int) -> Plan:
        """The learning rate of each group."""
        return {"rates": np.array(self.rates(step), np.float32)}

    def rates(self, step: int) -> list[float]:
        return [self.rate(step) * self.times[group["name"]] for group in self.inner.param_groups]

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, step: int, plan: Planned) -> None:
        for group, rate in zip(self.inner.param_groups, self.rates(step), strict=True):
            group["lr"] = rate
        if self.config.clip is not None:
            self.scaler.unscale_(self.inner)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.scaler.step(self.inner)
        self.scaler.update()
        self.inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, object]:
        return {"inner": self.inner.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.scaler.load_state_dict(state["scaler"])
