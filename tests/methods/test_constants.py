"""Default constants are those that the docstrings give, which are the papers' or say why they are not."""

import re

import pytest

from logicdiag.methods import ael, fixmatch, mkd, stpp, u2pl, unimatch
from logicdiag.methods.build import METHODS
from logicdiag.methods.config import AELConfig, MethodConfig, StagesConfig, U2PLConfig, unheard

C = MethodConfig()
TOLD = [
    (u2pl, "alpha_0 0.2", C.u2pl.unreliable, 0.2),
    (u2pl, "lambda_c 0.1", C.u2pl.weight, 0.1),
    (u2pl, "tau 0.5", C.u2pl.temperature, 0.5),
    (u2pl, "M 256", C.u2pl.anchors, 256),
    (u2pl, "N 50", C.u2pl.negatives, 50),
    (u2pl, "delta_p 0.3", C.u2pl.confidence, 0.3),
    (u2pl, "(r_l, r_h) = (3, 20)", C.u2pl.ranks, (3, 20)),
    (u2pl, "256 channels", C.u2pl.channels, 256),
    (u2pl, "it holds 4096 of them", C.u2pl.queue, 4096),
    (ael, "alpha 0.999", C.ael.momentum, 0.999),
    (ael, "beta 1", C.ael.beta, 1.0),
    (ael, "gamma 2", C.ael.gamma, 2.0),
    (ael, "copy-paste with probability 0.5", C.ael.paste, 0.5),
    (ael, "areas from 3 % of a view on", C.ael.area, 0.03),
    (stpp, "K = 3", C.stages.snapshots, 3),
    (stpp, "half of the images", C.stages.reliable, 0.5),
    (mkd, "`method.feature_dropout`, 0.5", C.feature_dropout, 0.5),
    (unimatch, "lambda = 1", C.weight, 1.0),
    (fixmatch, "lambda is 1 and rises between 0.3 and 0.6", (C.weight, *C.ramp), (1.0, 0.3, 0.6)),
]


@pytest.mark.parametrize(("module", "words", "found", "expected"), TOLD, ids=[words for _, words, _, _ in TOLD])
def test_a_default(module, words, found, expected):
    assert words in re.sub(r"\s+", " ", module.__doc__)
    assert found == expected


def test_how_much_teachers_keep():
    kept = {name: kind.default_decay for name, kind in METHODS.items()}
    assert kept == {name: 0.0 if name == "algorithm1" else 0.996 for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("steps", "decay"), [(None, 0.996), (40000, 0.996), (3750, 0.996), (1500, 0.99), (600, 0.975), (10, 0.5), (1, 0.5)]
)
def test_how_much_they_keep_in_a_short_run(name, steps, decay):
    """Averages are over a fifteenth of it at the most, unless the configuration says; of a stage that has its own."""
    if name == "algorithm1":
        assert METHODS[name].decay(MethodConfig(name), steps) == 0
        return
    assert METHODS[name].decay(MethodConfig(name, teacher_decay=0.999), steps) == 0.999
    whole = MethodConfig(name, stages=StagesConfig(anew=False))
    assert METHODS[name].decay(whole, steps) == pytest.approx(decay)
    if name != "st++":
        assert METHODS[name].decay(MethodConfig(name), steps) == pytest.approx(decay)


def test_st_plus_plus_averages_within_its_shortest_stage():
    assert METHODS["st++"].decay(MethodConfig("st++"), 1500) == pytest.approx(1 - 1 / 30)  # of three tenths
    assert METHODS["st++"].decay(MethodConfig("st++"), 40000) == 0.996


@pytest.mark.parametrize("name", METHODS)
def test_options_that_nobody_hears_are_told_of(name):
    assert unheard(MethodConfig(name)) is None
    changed = {"u2pl": U2PLConfig(ranks=(2, 7)), "ael": AELConfig(area=0.1), "stages": StagesConfig(anew=False)}
    told = {part: unheard(MethodConfig(name, **{part: options})) for part, options in changed.items()}
    heard = {"u2pl": "u2pl", "ael": "ael", "st++": "stages"}.get(name)
    assert [part for part in told if told[part] is None] == ([heard] if heard else [])
    expected = f"method.ael.area is 0.1, but ael alone looks at it, and method.name is {name}"
    assert told["ael"] == (None if name == "ael" else expected)
