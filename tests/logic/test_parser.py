import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag import RuleError, parse
from logicdiag.logic.formula import And, Atom, Exists, Forall, Iff, Implies, Not, Or
from tests.cases import random_formula

a, b, c, d = map(Atom, "abcd")


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("forall x: a(x) -> ~b(x)", Implies(a, Not(b))),
        ("∀x: a(x) → ¬b(x)", Implies(a, Not(b))),
        ("forall x: a(x) => !b(x)", Implies(a, Not(b))),
        ("forall x: a(x) | b(x) & c(x)", Or(a, And(b, c))),
        ("∀ x: a(x) ∨ b(x) ∧ c(x)", Or(a, And(b, c))),
        ("forall x: (a(x) || b(x)) && c(x)", And(Or(a, b), c)),
        ("forall x: a(x) -> b(x) -> c(x)", Implies(a, Implies(b, c))),
        ("forall x: (a(x) -> b(x)) -> c(x)", Implies(Implies(a, b), c)),
        ("forall x: a(x) <-> b(x) | c(x)", Iff(a, Or(b, c))),
        ("forall x: a(x) ⇔ b(x)", Iff(a, b)),
        ("forall x: ~~a(x)", Not(Not(a))),
        ("forall x: ~(a(x) & b(x))", Not(And(a, b))),
    ],
)
def test_meaning(text, formula):
    [rule] = parse(text)
    assert rule.formula == Forall("x", formula)
    assert rule.body == formula


def test_quantifiers_side_by_side():
    [rule] = parse("(exists x: a(x)) -> ~(exists y: b(y))")
    assert rule.formula == Implies(Exists("x", a), Not(Exists("y", Atom("b", "y"))))
    assert rule.body is None
    [rule] = parse("exists x: a(x) & b(x)")
    assert rule.formula == Exists("x", And(a, b))


def test_files_have_names_comments_and_continued_lines():
    rules = parse(
        """
        # what we know of streets

        no_flying_cars: forall x:
            car(x) -> ~sky(x)     # a comment
        forall x: 'hot dog'(x) -> "my-food"(x)
        "a name with spaces": exists x: t-shirt(x)
        """
    )
    assert [str(rule) for rule in rules] == [
        "no_flying_cars: forall x: car(x) -> ~sky(x)",
        "forall x: hot_dog(x) -> my-food(x)",
        "a name with spaces: exists x: t-shirt(x)",
    ]
    assert parse("") == parse("\n\n  # nothing\n") == []


def test_names_of_the_hierarchy():
    [rule] = parse("forall x: traffic_light(x) -> ~sky(x)", ["traffic light", "sky"])
    assert rule.body == Implies(Atom("traffic light"), Not(Atom("sky")))
    assert str(rule.formula) == "forall x: traffic_light(x) -> ~sky(x)"


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("forall x: a(x) ->", 1, 18, "the rule ends"),
        ("forall x: a(x) -> (b(x)", 1, 24, r"'\)' is expected"),
        ("forall x a(x)", 1, 10, "'a' stands where ':' is expected"),
        ("forall x: a(x) b(x)", 1, 16, "'b' stands where"),
        ("forall x: a(x) $ b(x)", 1, 16, "'\\$' has no meaning"),
        ("a(x) -> b(x)", 1, 3, "'x' is not bound; put 'forall x:'"),
        ("forall x: a(y)", 1, 13, "'y' is not bound here"),
        ("forall x: a(x) -> exists y: b(y)", 1, 19, "a quantifier inside the scope of 'x'"),
        ("forall x: a(x)\nforall x: brid(x)", 2, 11, "unknown class 'brid' \\(did you mean 'bird'\\?\\)"),
        ("forall x: a(x)\n\n# more\nforall x: & a(x)", 4, 11, "'&' stands where"),
        ("forall x: zzz(x)", 1, 11, "unknown class 'zzz'"),
        ("r: forall x: a(x)\nr: forall x: b(x)", 2, 1, "two rules are named 'r'"),
        ("    forall x: a(x)\n    forall x: zz(x)", 2, 15, "unknown class 'zz'"),
        ("forall x: " + "~" * 300 + "a(x)", 1, 211, "nested more than"),
    ],
)
def test_errors_show_where(text, line, column, problem):
    with pytest.raises(RuleError, match=problem) as caught:
        parse(text, ["a", "b", "bird"], "street.rules")
    assert (caught.value.line, caught.value.column) == (line, column)
    where, shown, caret = str(caught.value).split("\n")
    assert where.startswith(f"street.rules:{line}:{column}: ")
    assert shown[2:] == text.splitlines()[line - 1]
    assert caret.index("^") == column + 1


@settings(max_examples=200, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_text_reads_back_to_the_same_meaning(rng):
    formula = Forall("x", random_formula(rng, ("a", "b", "c"), 4))
    [rule] = parse(str(formula))
    assert str(rule.formula) == str(formula)


def test_hundreds_of_classes_in_one_rule():
    [rule] = parse("forall x: " + " | ".join(f"a{i}(x)" for i in range(2000)))
    assert str(rule.formula).count("|") == 1999


def test_names_that_begin_like_a_quantifier():
    rules = parse("exists_bird: exists x: bird(x)\nforall_birds: forall x: exists_now(x) -> forallx(x)")
    assert [rule.name for rule in rules] == ["exists_bird", "forall_birds"]
    assert rules[1].body == Implies(Atom("exists_now"), Atom("forallx"))
    with pytest.raises(RuleError):
        parse("forallx: bird(x)")


def test_names_with_quotes_read_back():
    for name in ("dogs'", '5" nail', "t shirt/(red)", "forall"):
        [rule] = parse(str(Forall("x", Atom(name))), [name])
        assert rule.body == Atom(name)


def test_line_ends_of_other_systems():
    assert parse("forall x: a(x)\r\nforall x:\r\n  b(x)\r\n") == parse("forall x: a(x)\nforall x:\n  b(x)\n")
    assert parse("\ufeffforall x: a(x)") == parse("forall x: a(x)")
