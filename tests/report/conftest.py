"""Two small runs, trained once: one with rules and a snapshot, one with a flat head."""

import pytest

from logicdiag.engine.train import train
from logicdiag.experiment.worker import Snapshots

from ..engine.small import config

SCENES = {"size": 48, "train": 9, "labeled": 4, "val": 4}
TRAIN = {"steps": 30, "labeled_batch": 4, "log_every": 5, "val_every": 10}


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Its networks are at most read; what is written into the folder is report.json alone."""
    path = tmp_path_factory.mktemp("reported") / "small"
    settings = config(
        data={"scenes": SCENES, "crop": 48},
        model={"decoder_channels": 32},
        method={"weight": 0.1, "teacher_decay": 0.5},
        loss={"nodes": "sum"},
        optimizer={"name": "adamw", "lr": 0.05, "head_lr": 1.0},  # so fast that it sees more than background
        train=TRAIN,
    )
    return train(settings, path, observe=Snapshots(path, [20]))


@pytest.fixture(scope="session")
def flat_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("reported") / "flat"
    return train(
        config(
            data={"scenes": SCENES}, model={"head": "flat"}, psi={"name": "threshold", "threshold": 0.2}, train=TRAIN
        ),
        path,
    )
