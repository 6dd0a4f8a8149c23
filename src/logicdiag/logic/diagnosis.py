"""Diagnoser: probabilities -> conflicts, minimal diagnoses, their likelihood, and labels that satisfy the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import LogicDiagError, OptionError, ProbabilityError, choose, hint
from ..kernels.taken import Chance, Keyed
from .blocks import Block, are_probabilities, blocks, check_shape, keep_freed_memory, not_probabilities
from .compile import compile_knowledge
from .explain import Explanation, explain_observation
from .fast import Fast
from .fuzzy import connectives as known_connectives
from .fuzzy import power
from .knowledge import KnowledgeBase
from .repair import Repair, Result, flip_log_odds, working_dtype
from .truth import TruthMeter, conflict_degree

STRATEGIES = {
    "uniform": "one minimal diagnosis at random, all alike",
    "predictive": "drawn by predictive confidence alone",
    "greedy": "the likeliest",
    "sampling": "drawn by its likelihood",
    "soft": "the expected labels, and the likeliest diagnosis",
}

SMALL_INPUT = 8 << 20
"""Bytes; working memory is kept in proportion to the input only beyond that."""

Degrees = Mapping[str, Float[Tensor, " n"]]
Observation = Mapping[str, float] | Sequence[float] | Tensor


@dataclass(frozen=True)
class Diagnosis:
    """Outputs that may be wrong, and the probability that they are the ones, among all minimal diagnoses."""

    flips: frozenset[str]
    probability: float


class Diagnoses(list[Diagnosis]):
    """Minimal diagnoses, likeliest first; of more than a budget, those are the likeliest.

    `total` says how many there are, None where that is not known because a search was given up.
    """

    def __init__(self, found: Iterable[Diagnosis], total: int | None) -> None:
        super().__init__(found)
        self.total = total

    @property
    def exhaustive(self) -> bool:
        """Whether these are all."""
        return self.total == len(self)


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
        _check_budget(budget)
        self.budget = budget
        self.program = compile_knowledge(kb)
        self._order = torch.tensor(self.program.layout.order)
        self._rows_of = torch.tensor(self.program.layout.row_of)
        self._fast: dict[torch.device, Fast | None] = {}

    # ---- many pixels ---------------------------------------------------------------------------

    @torch.no_grad()
    def __call__(
        self,
        probs: Float[Tensor, "..."],
        dim: int = 1,
        valid: Bool[Tensor, "*pixels"] | None = None,
        generator: Chance = None,
        degrees: Degrees | None = None,
    ) -> Result:
        """Diagnose every pixel. `dim` is the dimension of concepts; pixels that are not `valid` count nowhere.

        The truth degrees are measured over this batch, unless `degrees` brings those of a larger one. Diagnoses are
        drawn by `generator`; a `Keyed` one has a key for each pixel, so that what is drawn for it does not hang on the
        others.
        """
        check_shape(probs, dim, self.kb.hierarchy, valid)
        _check_generator(generator, probs)
        measured = dict(degrees) if degrees is not None else {}
        if degrees is None and self.uses_truth_degrees:
            measured = self.truth_degrees(probs, dim, valid)
        if (fast := self.fast(probs.device)) is not None and not isinstance(generator, Keyed):
            trust = self._trust(measured, probs.device, working_dtype(probs))[self._rows_of.to(probs.device)]
            return fast.result(
                probs, dim, valid, generator, trust, measured, degrees is None and self.uses_truth_degrees
            )
        repair = Repair(
            self.kb,
            self.program,
            self.strategy,
            self.budget,
            self._trust(measured, probs.device, working_dtype(probs)),
            Result.like(probs, dim, self.strategy == "soft", measured),
            dim,
            self._pixels_at_once(probs, self.program.floats_per_pixel(probs.device)),
            generator,
        )
        with torch.autocast(probs.device.type, enabled=False):
            for block, rows, inside in self._rows(probs, dim, valid, repair.written):
                repair.add(block, rows, inside)
            return repair.finish()

    def fast(self, device: torch.device) -> Fast | None:
        """The same in fused kernels, where there are such for these rules and that device."""
        if device not in self._fast:
            self._fast[device] = Fast.of(self, device)
        return self._fast[device]

    @property
    def uses_truth_degrees(self) -> bool:
        return self.strategy in ("greedy", "sampling", "soft")

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

    def _rows(
        self, probs: Tensor, dim: int, valid: Tensor | None, written: Sequence[Tensor] = ()
    ) -> Iterator[tuple[Block, Float[Tensor, "n pixels"], Bool[Tensor, " pixels"] | None]]:
        """The pixels block by block, as rows of at least float32, and which of them are valid."""
        keep_freed_memory()
        nodes_first = probs.movedim(dim, 0)
        order = self._order.to(probs.device)
        mask = None if valid is None else valid.contiguous()
        for block in blocks((nodes_first, *written), self._pixels_at_once(probs, 6 * len(self.kb.hierarchy))):
            rows = block.rows(nodes_first).index_select(0, order).to(working_dtype(probs))
            inside = None if mask is None else block.pixels(mask)
            if not are_probabilities(rows):
                if inside is None or not are_probabilities(rows[:, inside]):
                    raise not_probabilities(probs, dim, self.kb.hierarchy, valid)
                rows = rows.nan_to_num(0.0, 1.0, 0.0).clamp(0, 1)  # of no consequence, but must not spread
            yield block, rows, inside

    def _pixels_at_once(self, probs: Tensor, floats_per_pixel: int) -> int:
        """On a CPU few enough for its caches, and for memory beside the input; on a GPU as many as fill a gigabyte."""
        if probs.device.type != "cpu":
            return max(1 << 16, (1 << 30) // (4 * floats_per_pixel))
        wanted = max(2048, (40 << 20) // (4 * floats_per_pixel))
        within = max(probs.numel() * probs.element_size(), SMALL_INPUT) // (4 * floats_per_pixel)
        return max(256, min(wanted, within))

    # ---- truth degrees -------------------------------------------------------------------------

    def meter(self, device: torch.device | str = "cpu") -> TruthMeter:
        """An empty account of truth degrees, to be filled block by block or reduced over processes."""
        return TruthMeter(self.kb, self.program.layout, self.q, self.connectives, self.quantifier, device)

    @torch.no_grad()
    def measure(self, meter: TruthMeter, probs: Tensor, dim: int = 1, valid: Tensor | None = None) -> None:
        """Add the pixels of a tensor to a meter."""
        check_shape(probs, dim, self.kb.hierarchy, valid)
        with torch.autocast(probs.device.type, enabled=False):
            for _, rows, inside in self._rows(probs, dim, valid):
                meter.add(rows if inside is None else rows[:, inside])

    def truth_degrees(
        self, probs: Float[Tensor, "..."], dim: int = 1, valid: Bool[Tensor, "*pixels"] | None = None
    ) -> dict[str, Float[Tensor, " n"]]:
        """g(o, k) per concept, by family and user rule: how far each rule holds over the batch, in [0, 1]."""
        check_shape(probs, dim, self.kb.hierarchy, valid)
        fast = self.fast(probs.device)
        if fast is not None and fast.measures and probs.dtype != torch.float64:
            return fast.truth_degrees(probs, dim, valid)
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
        _check_budget(budget, "or None for all")
        column = self._column(observation)
        if degrees is None and self.uses_truth_degrees:
            degrees = self.truth_degrees(column, dim=0)
        rows = column.index_select(0, self._order)
        flip = flip_log_odds(rows, self._trust(degrees or {}, rows.device, rows.dtype), self.strategy)
        found, count = self.program.enumerate((rows[:, 0] > 0.5).tolist(), flip[:, 0].tolist(), budget)
        weights = torch.tensor([weight for weight, _ in found], dtype=torch.float64)
        total = torch.logsumexp(weights, 0)
        if count != len(found):
            taken = self.program.diagnose(rows > 0.5, flip, "best", budget=self.budget)
            if taken.exhaustive is None or taken.exhaustive.all():  # then the normaliser over all of them is known
                total = (flip * ((rows > 0.5) ^ taken.revised)).sum() - taken.log_prob[0]
        names, channel = self.kb.hierarchy.names, self.program.layout.order
        listed = zip(found[:budget], torch.exp(weights - total)[:budget].tolist(), strict=True)
        return Diagnoses(
            (
                Diagnosis(frozenset(names[channel[row]] for row in range(len(names)) if mask >> row & 1), probability)
                for (_, mask), probability in listed
            ),
            count,
        )

    def explain(
        self,
        observation: Observation,
        budget: int | None = 1000,
        degrees: Degrees | None = None,
        generator: torch.Generator | None = None,
    ) -> Explanation:
        """Which rules one observation breaks, its diagnoses, and the one taken: print it, or read `.as_dict()`.

        Which diagnosis is taken follows the strategy, with the generator's draws.
        """
        column = self._column(observation)
        return self.explain_at(column, (0,), self(column, 0, None, generator, degrees), 0, budget)

    def explain_at(
        self, probs: Tensor, at: tuple[int, ...], result: Result, dim: int = 1, budget: int | None = 1000
    ) -> Explanation:
        """The explanation of one pixel of a batch, with the batch's truth degrees and the diagnosis that was taken."""

        def pixel(tensor: Tensor) -> Tensor:
            tensor = tensor.movedim(dim, 0)
            for place in at:
                tensor = tensor[:, place]
            return tensor.cpu()

        names = self.kb.hierarchy.names
        flipped = (pixel(result.observed) ^ pixel(result.revised)).tolist()
        flips = frozenset(name for name, flip in zip(names, flipped, strict=True) if flip)
        taken = Diagnosis(flips, float(result.log_prob[at].exp()))
        probabilities = pixel(probs).double()
        degrees = {name: values.cpu() for name, values in result.truth_degrees.items()}
        found = self.diagnoses(probabilities, budget, degrees if self.uses_truth_degrees else None)
        return explain_observation(self.kb, probabilities.tolist(), found, taken, self.strategy)

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
        column = torch.as_tensor(observation, dtype=torch.float64, device="cpu")
        if column.shape != (len(names),):
            raise ProbabilityError(
                f"an observation has {tuple(column.shape)} values, the hierarchy has {len(names)} concepts"
            )
        if not are_probabilities(column):
            raise not_probabilities(column, 0, self.kb.hierarchy, None)
        return column[:, None]

    def __repr__(self) -> str:
        return f"Diagnoser({self.kb!r}, strategy={self.strategy!r})"


def _check_budget(budget: int | None, otherwise: str = "") -> None:
    if budget is None and otherwise:
        return
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        expected = f"a whole number of at least 1{', ' if otherwise else ''}{otherwise}"
        raise OptionError(f"budget is {budget!r}, expected {expected}")


def _check_generator(generator: Chance, probs: Tensor) -> None:
    if generator is None:
        return
    device = generator.keys.device if isinstance(generator, Keyed) else generator.device
    if device.type != probs.device.type:
        raise OptionError(f"the generator is on {device}, the probabilities are on {probs.device}")
