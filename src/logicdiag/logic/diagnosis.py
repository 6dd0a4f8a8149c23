"""Diagnoser: probabilities -> conflicts, minimal diagnoses, their likelihood, and labels that satisfy the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..errors import LogicDiagError, OptionError, ProbabilityError, choose, hint
from ..kernels.taken import Taken
from . import blocks as block_module
from .blocks import blocks
from .compile import compile_knowledge
from .explain import Explanation, explain_observation
from .fuzzy import connectives as known_connectives
from .fuzzy import power
from .knowledge import KnowledgeBase
from .truth import TruthMeter, conflict_degree

STRATEGIES = {
    "uniform": "one minimal diagnosis at random, all alike",
    "predictive": "drawn by predictive confidence alone",
    "greedy": "the likeliest",
    "sampling": "drawn by its likelihood",
    "soft": "the expected labels, and the likeliest diagnosis",
}
EPSILON = 1e-6
"""Probabilities of normality are kept this far from 0 and 1."""
MOST_LISTED = 5_000_000
"""Without a budget, `diagnoses` refuses to list more than this."""

Degrees = Mapping[str, Float[Tensor, " n"]]
Observation = Mapping[str, float] | Sequence[float] | Tensor


@dataclass(frozen=True)
class Diagnosis:
    """Outputs that may be wrong, and the probability that they are the ones, among all minimal diagnoses."""

    flips: frozenset[str]
    probability: float


class Diagnoses(list[Diagnosis]):
    """Minimal diagnoses, likeliest first. `exhaustive` is False where a budget left some out."""

    def __init__(self, found: Iterable[Diagnosis], exhaustive: bool) -> None:
        super().__init__(found)
        self.exhaustive = exhaustive


@dataclass
class Result:
    """What was seen, what it was revised to, and how sure that is."""

    observed: Bool[Tensor, "..."]
    """Shaped as the probabilities: true where above 0.5."""
    revised: Bool[Tensor, "..."]
    """Shaped as the probabilities; always satisfies the knowledge base."""
    conflict: Bool[Tensor, "*pixels"]
    """Where the observed labels break a rule; False outside of `valid`."""
    leaf: Int64[Tensor, "*pixels"]
    """Index into `hierarchy.leaves`; -1 where not exactly one leaf is true, and outside of `valid`."""
    log_prob: Float[Tensor, "*pixels"]
    """log P(omega | S) of the diagnosis taken, normalised over the minimal ones; 0 outside of `valid`."""
    expected: Float[Tensor, "..."] | None
    """With strategy `soft`: the expected labels, shaped as the probabilities."""
    exhaustive: Bool[Tensor, "*pixels"]
    """False where there were more minimal diagnoses than the budget, and only the likeliest were weighed."""
    truth_degrees: dict[str, Float[Tensor, " n"]]
    """The truth degrees that the likelihood used; empty for strategies that use none."""


class Diagnoser:
    """Finds where predictions break the rules, and repairs them by a minimal diagnosis.

    >>> from logicdiag import Hierarchy
    >>> h = Hierarchy.from_dict({"animal": ["bird", "cat"], "sky": None})
    >>> d = Diagnoser(KnowledgeBase(h), strategy="greedy")
    >>> r = d(torch.tensor([[0.2, 0.9, 0.1, 0.3]]))      # a bird that is no animal
    >>> r.conflict, r.revised
    (tensor([True]), tensor([[ True,  True, False, False]]))

    The rules are compiled once, here; a call only applies them. `strategy` says how diagnoses are weighed and which is
    taken (see `STRATEGIES`); `q`, `connectives` and `quantifier` define the truth degrees; `budget` bounds how many
    diagnoses of one pixel are listed where the rules are so tangled that they have to be listed.
    """

    def __init__(
        self,
        kb: KnowledgeBase,
        strategy: str = "sampling",
        q: float = 5,
        connectives: str = "paper",
        quantifier: str = "pmean_error",
        budget: int = 1024,
    ) -> None:
        self.kb = kb
        self.strategy = choose("strategy", strategy, STRATEGIES)
        self.q, self.connectives, self.quantifier = q, connectives, quantifier
        known_connectives(connectives)
        power(quantifier, q)
        if not isinstance(budget, int) or budget < 1:
            raise OptionError(f"budget is {budget!r}, expected a whole number of at least 1")
        self.budget = budget
        self.program = compile_knowledge(kb)
        self._order = torch.tensor(self.program.layout.order)

    # ---- many pixels ---------------------------------------------------------------------------

    @torch.no_grad()
    def __call__(
        self,
        probs: Float[Tensor, "..."],
        dim: int = 1,
        valid: Bool[Tensor, "*pixels"] | None = None,
        generator: torch.Generator | None = None,
        degrees: Degrees | None = None,
    ) -> Result:
        """Diagnose every pixel. `dim` is the dimension of concepts; pixels that are not `valid` count nowhere.

        The truth degrees are measured over this batch, unless `degrees` brings those of a larger one.
        """
        block_module.check_shape(probs, dim, self.kb.hierarchy, valid)
        _check_generator(generator, probs)
        measured = dict(degrees) if degrees is not None else {}
        if degrees is None and self.uses_truth_degrees:
            measured = self.truth_degrees(probs, dim, valid)
        nodes_first = probs.movedim(dim, 0)
        pixels = nodes_first.shape[1:]
        work = torch.float64 if probs.dtype == torch.float64 else torch.float32
        result = Result(
            observed=torch.empty_like(probs, dtype=torch.bool),
            revised=torch.empty_like(probs, dtype=torch.bool),
            conflict=torch.empty(pixels, dtype=torch.bool, device=probs.device),
            leaf=torch.empty(pixels, dtype=torch.int64, device=probs.device),
            log_prob=torch.empty(pixels, dtype=work, device=probs.device),
            expected=torch.empty_like(probs, dtype=work) if self.strategy == "soft" else None,
            exhaustive=torch.ones(pixels, dtype=torch.bool, device=probs.device),
            truth_degrees=measured,
        )
        trust = self._trust(measured, probs.device, work)
        order = self._order.to(probs.device)
        back = torch.argsort(order)
        observed_first, revised_first = result.observed.movedim(dim, 0), result.revised.movedim(dim, 0)
        for block in blocks(nodes_first, self._block_size(probs)):
            rows = block.rows(nodes_first).index_select(0, order).to(work)
            inside = None if valid is None else block.pixels(valid.contiguous())
            rows = self._checked(rows, inside, probs, dim, valid)
            observed, taken = self._diagnose_rows(rows, trust, generator)
            self._write(block, result, observed, taken, inside, observed_first, revised_first, back, dim)
        return result

    @property
    def uses_truth_degrees(self) -> bool:
        return self.strategy in ("greedy", "sampling", "soft")

    def _diagnose_rows(
        self, rows: Float[Tensor, "n pixels"], trust: Float[Tensor, " n"], generator: torch.Generator | None
    ) -> tuple[Bool[Tensor, "n pixels"], Taken]:
        observed = rows > 0.5
        return observed, self.program.diagnose(
            observed,
            self._flip(rows, trust),
            choice="best" if self.strategy in ("greedy", "soft") else "sample",
            generator=generator,
            expected=self.strategy == "soft",
            budget=self.budget,
        )

    def _flip(self, rows: Float[Tensor, "n pixels"], trust: Float[Tensor, " n"]) -> Float[Tensor, "n pixels"]:
        """Log odds that an output is wrong, log((1 - t) / t), for t = P(t(o)) of Eq. fail."""
        if self.strategy == "uniform":
            return torch.zeros_like(rows)
        confidence = (rows - 0.5).abs_().add_(0.5)
        return torch.logit(confidence.mul_(trust[:, None]), EPSILON).neg_()

    def _trust(self, degrees: Degrees, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " n"]:
        """1 - c(o), in row order."""
        n = len(self.kb.hierarchy)
        if not self.uses_truth_degrees:
            return torch.ones(n, dtype=dtype, device=device)
        expected = [*self.kb.families, *(rule.name for rule in self.kb.rules)]
        if sorted(degrees) != sorted(expected):
            raise LogicDiagError(f"truth degrees are of {sorted(degrees)}, the knowledge base has {sorted(expected)}")
        conflict = conflict_degree(dict(degrees), n).to(device=device, dtype=dtype)
        return 1 - conflict[self._order.to(device)]

    def _checked(self, rows: Tensor, inside: Tensor | None, probs: Tensor, dim: int, valid: Tensor | None) -> Tensor:
        """The rows, if all that counts in them is a probability; what does not count is made harmless."""
        if block_module.are_probabilities(rows):
            return rows
        if inside is None or not block_module.are_probabilities(rows[:, inside]):
            raise block_module.not_probabilities(probs, dim, self.kb.hierarchy, valid)
        return rows.nan_to_num(0.0, 1.0, 0.0).clamp(0, 1)

    def _write(
        self,
        block: block_module.Block,
        result: Result,
        observed: Tensor,
        taken: Taken,
        inside: Tensor | None,
        observed_first: Tensor,
        revised_first: Tensor,
        back: Tensor,
        dim: int,
    ) -> None:
        conflict = (observed ^ taken.revised).view(torch.uint8).amax(0).bool()
        leaf = _single_leaf(taken.revised[list(self.program.layout.leaf_rows)])
        log_prob = taken.log_prob.clamp(max=0)
        if inside is not None:
            conflict &= inside
            leaf = torch.where(inside, leaf, -1)
            log_prob = log_prob * inside
        block.rows(observed_first).copy_(observed.index_select(0, back))
        block.rows(revised_first).copy_(taken.revised.index_select(0, back))
        block.pixels(result.conflict).copy_(conflict)
        block.pixels(result.leaf).copy_(leaf)
        block.pixels(result.log_prob).copy_(log_prob)
        if result.expected is not None and taken.expected is not None:
            block.rows(result.expected.movedim(dim, 0)).copy_(taken.expected.index_select(0, back))
        if taken.exhaustive is not None:
            block.pixels(result.exhaustive).copy_(taken.exhaustive if inside is None else taken.exhaustive | ~inside)

    def _block_size(self, probs: Tensor) -> int:
        """Pixels per block: small enough for the caches and for half of the input's own memory, on a CPU."""
        if probs.device.type != "cpu":
            return max(1024, (1 << 27) // self.program.floats_per_pixel)
        room = min(probs.numel() * probs.element_size() // 2, 32 << 20)
        return max(256, room // (4 * self.program.floats_per_pixel))

    # ---- truth degrees -------------------------------------------------------------------------

    def meter(self, device: torch.device | str = "cpu") -> TruthMeter:
        """An empty account of truth degrees, to be filled block by block or reduced over processes."""
        return TruthMeter(self.kb, self.program.layout, self.q, self.connectives, self.quantifier, device)

    @torch.no_grad()
    def measure(self, meter: TruthMeter, probs: Tensor, dim: int = 1, valid: Tensor | None = None) -> None:
        """Add the pixels of a tensor to a meter."""
        block_module.check_shape(probs, dim, self.kb.hierarchy, valid)
        nodes_first = probs.movedim(dim, 0)
        work = torch.float64 if probs.dtype == torch.float64 else torch.float32
        order = self._order.to(probs.device)
        for block in blocks(nodes_first, self._block_size(probs)):
            rows = block.rows(nodes_first).index_select(0, order).to(work)
            inside = None if valid is None else block.pixels(valid.contiguous())
            rows = self._checked(rows, inside, probs, dim, valid)
            meter.add(rows if inside is None else rows[:, inside])

    def truth_degrees(
        self, probs: Float[Tensor, "..."], dim: int = 1, valid: Bool[Tensor, "*pixels"] | None = None
    ) -> dict[str, Float[Tensor, " n"]]:
        """g(o, k) per concept, by family and user rule: how far each rule holds over the batch, in [0, 1]."""
        block_module.check_shape(probs, dim, self.kb.hierarchy, valid)
        meter = self.meter(probs.device)
        self.measure(meter, probs, dim, valid)
        return meter.degrees()

    def conflict_degree(self, degrees: Degrees) -> Float[Tensor, " n"]:
        """c(o): one minus the mean truth degree of the rules about o (Eq. truth_degree)."""
        return conflict_degree(dict(degrees), len(self.kb.hierarchy))

    # ---- one observation -----------------------------------------------------------------------

    def diagnoses(
        self, observation: Observation, budget: int | None = None, degrees: Degrees | None = None
    ) -> Diagnoses:
        """Every minimal diagnosis of one observation, likeliest first, or the `budget` likeliest.

        `observation` gives each concept's probability, by name or in channel order. Truth degrees are measured on it
        alone, unless `degrees` brings those of a batch.
        """
        column = self._column(observation)
        if degrees is None and self.uses_truth_degrees:
            degrees = self.truth_degrees(column, dim=0)
        rows = column.index_select(0, self._order)
        flip = self._flip(rows, self._trust(degrees or {}, rows.device, rows.dtype))[:, 0].tolist()
        observed = (rows[:, 0] > 0.5).tolist()
        if budget is None:
            count = self.program.count(observed)
            if count is not None and count > MOST_LISTED:
                raise LogicDiagError(f"this observation has {count} minimal diagnoses; pass budget=N for the N likeliest")
        found, exhaustive = self.program.enumerate(observed, flip, budget)
        weights = torch.softmax(torch.tensor([weight for weight, _ in found], dtype=torch.float64), 0).tolist()
        names = self.kb.hierarchy.names
        channel = self.program.layout.order
        flips = [frozenset(names[channel[row]] for row in range(len(channel)) if mask >> row & 1) for _, mask in found]
        return Diagnoses((Diagnosis(f, w) for f, w in zip(flips, weights, strict=True)), exhaustive)

    def explain(
        self,
        observation: Observation,
        budget: int | None = 1000,
        degrees: Degrees | None = None,
        taken: frozenset[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> Explanation:
        """Which rules one observation breaks, its diagnoses, and the one taken: print it, or read `.as_dict()`.

        Which diagnosis is taken follows the strategy, unless `taken` says which one was.
        """
        column = self._column(observation)
        found = self.diagnoses(column[:, 0], budget, degrees)
        if taken is None:
            index = 0
            if self.strategy not in ("greedy", "soft"):
                shares = torch.tensor([d.probability for d in found], dtype=torch.float64)
                index = int(torch.multinomial(shares, 1, generator=generator))
            taken = found[index].flips
        return explain_observation(self.kb, column[:, 0].tolist(), found, taken, self.strategy)

    def explain_at(self, probs: Tensor, at: tuple[int, ...], result: Result, dim: int = 1) -> Explanation:
        """The explanation of one pixel of a batch, with the batch's truth degrees and the diagnosis that was taken."""
        where = (*at[: dim % probs.dim()], slice(None), *at[dim % probs.dim() :])
        flipped = result.observed[where] ^ result.revised[where]
        taken = frozenset(name for name, flip in zip(self.kb.hierarchy.names, flipped.tolist(), strict=True) if flip)
        return self.explain(probs[where].cpu(), degrees=result.truth_degrees or None, taken=taken)

    def _column(self, observation: Observation) -> Float[Tensor, "n 1"]:
        names = self.kb.hierarchy.names
        if isinstance(observation, Mapping):
            for name in observation:
                if name not in self.kb.hierarchy.names:
                    raise ProbabilityError(f"{name!r} is not in {self.kb.hierarchy.title}{hint(str(name), names)}")
            missing = [name for name in names if name not in observation]
            if missing:
                raise ProbabilityError(f"no probability is given for {', '.join(map(repr, missing))}")
            observation = [observation[name] for name in names]
        column = torch.as_tensor(observation, dtype=torch.float64)
        if column.shape != (len(names),):
            raise ProbabilityError(f"an observation has {tuple(column.shape)} values, the hierarchy has {len(names)} concepts")
        if not block_module.are_probabilities(column):
            raise block_module.not_probabilities(column, 0, self.kb.hierarchy, None)
        return column[:, None]

    def __repr__(self) -> str:
        return f"Diagnoser({self.kb!r}, strategy={self.strategy!r})"


def _single_leaf(leaves: Bool[Tensor, "leaves pixels"]) -> Int64[Tensor, " pixels"]:
    """The one true leaf of each pixel, -1 where there is none or more than one."""
    truth = leaves.to(torch.float32)
    index = torch.arange(leaves.shape[0], dtype=torch.float32, device=leaves.device)
    count, where = torch.stack([torch.ones_like(index), index]) @ truth
    return ((where + 1) * (count == 1) - 1).long()


def _check_generator(generator: torch.Generator | None, probs: Tensor) -> None:
    if generator is not None and generator.device.type != probs.device.type:
        raise OptionError(f"the generator is on {generator.device}, the probabilities are on {probs.device}")


__all__ = ["STRATEGIES", "Diagnoser", "Diagnoses", "Diagnosis", "Result"]
