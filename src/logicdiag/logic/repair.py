"""Walks over the blocks of a batch, collects the pixels in conflict, has them diagnosed, and writes the result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..kernels.taken import Chance, Keyed, Taken
from .blocks import Block
from .compile import Program
from .knowledge import KnowledgeBase

EPSILON = 1e-6
"""Probabilities of normality are kept this far from 0 and 1."""
MOST_LOG_ODDS = math.log1p(-EPSILON) - math.log(EPSILON)


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

    @classmethod
    def like(cls, probs: Tensor, dim: int, soft: bool, degrees: dict[str, Tensor]) -> Result:
        pixels = probs.movedim(dim, 0).shape[1:]
        work = working_dtype(probs)
        return cls(
            observed=torch.empty_like(probs, dtype=torch.bool),
            revised=torch.empty_like(probs, dtype=torch.bool),
            conflict=torch.empty(pixels, dtype=torch.bool, device=probs.device),
            leaf=torch.empty(pixels, dtype=torch.int64, device=probs.device),
            log_prob=torch.zeros(pixels, dtype=work, device=probs.device),
            expected=torch.empty_like(probs, dtype=work) if soft else None,
            exhaustive=torch.ones(pixels, dtype=torch.bool, device=probs.device),
            truth_degrees=degrees,
        )


def working_dtype(probs: Tensor) -> torch.dtype:
    """Half precision cannot tell 1 - 1e-6 from 1, so at least float32."""
    return torch.float64 if probs.dtype == torch.float64 else torch.float32


@dataclass
class Repair:
    """One call of a `Diagnoser`: `add` every block, then `finish`."""

    kb: KnowledgeBase
    program: Program
    strategy: str
    budget: int
    trust: Float[Tensor, " n"]
    """1 - c(o) of every concept, in row order."""
    result: Result
    dim: int
    size: int
    """Pixels that are diagnosed at a time."""
    generator: Chance
    waiting: list[tuple[Block, Tensor, Tensor]] = field(default_factory=list)
    """(block, where in it, the rows there) of conflicts that are not diagnosed yet."""

    def __post_init__(self) -> None:
        device = self.trust.device
        self.back = torch.tensor(self.program.layout.row_of, device=device)
        self.leaf_rows = torch.tensor(self.program.layout.leaf_rows, device=device)
        self.leaf_channels = torch.tensor(self.kb.hierarchy.leaf_indices, device=device)
        self.observed = self.result.observed.movedim(self.dim, 0)
        self.revised = self.result.revised.movedim(self.dim, 0)
        self.expected = None if self.result.expected is None else self.result.expected.movedim(self.dim, 0)

    @property
    def written(self) -> tuple[Tensor, ...]:
        """What blocks are written into, concepts first."""
        return (self.observed, self.revised) if self.expected is None else (self.observed, self.revised, self.expected)

    def add(self, block: Block, rows: Float[Tensor, "n pixels"], inside: Bool[Tensor, " pixels"] | None) -> None:
        """Write what is consistent; keep what is not until there is enough of it to be worth a sweep."""
        labels = (rows > 0.5).index_select(0, self.back)
        block.rows(self.observed).copy_(labels)
        conflict = ~self.kb.is_consistent(labels.T)
        if inside is not None and bool((ignored := conflict & ~inside).any()):
            # consistent like all the rest, but without a draw, so that it changes nothing elsewhere
            labels[:, ignored] = self.default[:, None]
            conflict &= inside
        block.pixels(self.result.conflict).copy_(conflict)
        if not conflict.all():
            block.rows(self.revised).copy_(labels)
            leaf = _single_leaf(labels.index_select(0, self.leaf_channels))
            block.pixels(self.result.leaf).copy_(leaf if inside is None else leaf.where(inside, -1))
            if self.expected is not None:
                block.rows(self.expected).copy_(labels)
        where = conflict.nonzero()[:, 0]
        if where.numel():
            kept = rows if where.numel() == rows.shape[1] else rows.index_select(1, where)
            self.waiting.append((block, where, kept))
        if sum(entry[1].numel() for entry in self.waiting) >= self.size:
            self._flush()

    @cached_property
    def default(self) -> Bool[Tensor, " n"]:
        """A label that satisfies the rules, in channel order, for pixels that do not count."""
        nothing = torch.zeros(len(self.back), 1, dtype=torch.bool, device=self.back.device)
        taken = self.program.diagnose(nothing, self.trust.new_zeros(len(self.back), 1), "best", budget=self.budget)
        return taken.revised[:, 0][self.back]

    def finish(self) -> Result:
        self._flush()
        return self.result

    def _flush(self) -> None:
        if not self.waiting:
            return
        rows = self.waiting[0][2] if len(self.waiting) == 1 else torch.cat([entry[2] for entry in self.waiting], 1)
        chances = self._chances(rows.shape[1])
        done = [self._diagnose(part, chance) for part, chance in zip(rows.split(self.size, 1), chances, strict=True)]
        taken = done[0] if len(done) == 1 else _joined(done)
        start = 0
        for block, where, kept in self.waiting:
            stop = start + kept.shape[1]
            self._write(block, where, taken, slice(start, stop))
            start = stop
        self.waiting.clear()

    def _chances(self, count: int) -> list[Chance]:
        """For each of the parts that the waiting pixels are diagnosed in."""
        if not isinstance(self.generator, Keyed):
            return [self.generator] * math.ceil(count / self.size)
        keys = torch.cat([block.pixels(self.generator.keys).index_select(0, where) for block, where, _ in self.waiting])
        return [Keyed(part) for part in keys.split(self.size)]

    def _diagnose(self, rows: Float[Tensor, "n pixels"], chance: Chance) -> Taken:
        return self.program.diagnose(
            rows > 0.5,
            flip_log_odds(rows, self.trust, self.strategy),
            choice="best" if self.strategy in ("greedy", "soft") else "sample",
            generator=chance,
            expected=self.expected is not None,
            budget=self.budget,
        )

    def _write(self, block: Block, where: Tensor, taken: Taken, span: slice) -> None:
        revised = taken.revised[:, span]
        _put(block.rows(self.revised), where, revised.index_select(0, self.back))
        _put(block.pixels(self.result.leaf), where, _single_leaf(revised.index_select(0, self.leaf_rows)))
        _put(block.pixels(self.result.log_prob), where, taken.log_prob[span].clamp(max=0))
        if self.expected is not None and taken.expected is not None:
            _put(block.rows(self.expected), where, taken.expected[:, span].index_select(0, self.back))
        if taken.exhaustive is not None:
            _put(block.pixels(self.result.exhaustive), where, taken.exhaustive[span])


def flip_log_odds(
    rows: Float[Tensor, "n pixels"], trust: Float[Tensor, " n"], strategy: str
) -> Float[Tensor, "n pixels"]:
    """Log odds that an output is wrong, log((1 - t) / t), for t = P(t(o)) of Eq. fail; all alike for `uniform`."""
    if strategy == "uniform":
        return torch.zeros_like(rows)
    trust = trust[:, None]
    normal = torch.addcmul(0.5 * trust, (rows - 0.5).abs_(), trust)  # confidence, |p - 0.5| + 0.5, times trust
    return normal.logit_().clamp_(-MOST_LOG_ODDS, MOST_LOG_ODDS).neg_()


def _put(into: Tensor, where: Tensor, values: Tensor) -> None:
    if where.numel() == into.shape[-1]:
        into.copy_(values)
    else:
        into.index_copy_(into.dim() - 1, where, values)


def _joined(parts: list[Taken]) -> Taken:
    def cat(tensors: list[Tensor | None]) -> Tensor | None:
        return torch.cat([t for t in tensors if t is not None], -1) if tensors[0] is not None else None

    revised, log_prob = cat([p.revised for p in parts]), cat([p.log_prob for p in parts])
    assert revised is not None
    assert log_prob is not None
    return Taken(revised, log_prob, cat([p.expected for p in parts]), cat([p.exhaustive for p in parts]))


def _single_leaf(leaves: Bool[Tensor, "leaves pixels"]) -> Int64[Tensor, " pixels"]:
    """The one true leaf of each pixel, -1 where there is none or more than one.

    Each leaf counts a power of two above all indices, plus its own index: one sum tells both. (No matrix product,
    which may be set to round.)
    """
    above = 1 << leaves.shape[0].bit_length()
    value = torch.arange(above, above + leaves.shape[0], dtype=torch.float32, device=leaves.device)
    found = leaves.to(torch.float32).mul_(value[:, None]).sum(0)
    return torch.where((found >= above) & (found < 2 * above), found - above, -1).long()
