"""What a run does for a method of several stages: which images are learned from, and how they are ranked."""

import copy

import pytest
import torch

from logicdiag.data.open import open_dataset
from logicdiag.engine import batches
from logicdiag.engine.distributed import World
from logicdiag.engine.pause import Pause
from logicdiag.engine.trainer import Trainer
from tests.methods.every import steps

from .small import config


def trainer(**method):
    c = config(data={"val": None}, method={"name": "st++", **method}, train={"steps": 10})
    return Trainer(c, open_dataset(c.data), World(), None, None)


def test_images_are_those_that_the_method_offers(monkeypatch):
    """None in the first stage, the stable ones in the second, and all in the third."""
    given, inner = [], batches._loader

    def loader(trainer, stack, stream, items, *rest):
        given.append((trainer.method.stage, stream, list(items)))
        return inner(trainer, stack, stream, items, *rest)

    monkeypatch.setattr(batches, "_loader", loader)
    monkeypatch.setattr(Pause, "measure", lambda self, networks, score: [0.1, 0.9, 0.3, 0.8, 0.2])
    made = trainer()
    steps(made, 7)
    labeled, unlabeled = list(made.dataset.labeled), list(made.dataset.unlabeled)
    assert given == [
        (0, "labeled", labeled),
        (1, "unlabeled", [unlabeled[1], unlabeled[3]]),
        (2, "unlabeled", unlabeled),
    ]


def test_lambda_holds_in_full_from_the_second_stage_on():
    """Steps 4 to 6 of 10 are the second stage; a ramp over it would have lambda at 0, then a third, then two."""
    lines = steps(trainer(weight=5.0, ramp=[0.3, 0.6]), 7)
    assert ["loss/unlabeled" in line for line in lines] == [False] * 3 + [True] * 4
    for line in lines[3:]:
        assert line["loss/unlabeled"] > 0.01
        assert line["loss"] == pytest.approx(line["loss/labeled"] + 5 * line["loss/unlabeled"], rel=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_unlabelled_images_are_scored_by_what_networks_predict(training):
    """Of each whole image, by all networks, as they are at inference."""
    made = trainer()
    networks = [copy.deepcopy(made.model).train(training) for _ in range(2)]
    with torch.no_grad():
        for number, network in enumerate(networks):
            network.classifier.weight.mul_(50).add_(0.1 * torch.randn(network.classifier.weight.shape))
            network.classifier.bias.add_(number)

    def score(leaves):
        return sum((number + 1) * float(found.double().mean()) for number, found in enumerate(leaves))

    found = Pause(made.config, made.dataset, made.here, made.optimizer).measure(networks, score)
    assert [network.training for network in networks] == [training] * 2
    expected = []
    for photo in made.dataset.unlabeled:
        image = torch.from_numpy(photo.image()).permute(2, 0, 1)[None].float() / 255
        with torch.no_grad():
            logits = [network.eval()(image) for network in networks]
        expected.append(
            score([network.leaf_logits(one).argmax(1)[0] for network, one in zip(networks, logits, strict=True)])
        )
    assert found == pytest.approx(expected)
    assert len(set(expected)) == len(expected)
