"""Run folders by themselves: what is written, and what is read again."""

import copy
import json
import os
import stat
from types import SimpleNamespace

import pytest
import torch

from logicdiag.data.dataset import LeafTable, Relabelled, mask_ids
from logicdiag.data.open import open_dataset
from logicdiag.engine.distributed import World
from logicdiag.engine.record import Record
from logicdiag.engine.run import (
    create_run,
    cut_metrics,
    in_use,
    load_checkpoint,
    open_run,
    read_metrics,
    remove_parts,
    save_checkpoint,
)
from logicdiag.errors import LogicDiagError, RunError
from logicdiag.logic.hierarchy import Hierarchy
from logicdiag.models import build_model

from .small import config


@pytest.fixture
def made(tmp_path):
    rules = tmp_path / "my.rules"
    rules.write_text("no_oak: forall x: ~oak(x)\n")
    c = config(psi={"rules": "my.rules"})
    return create_run(tmp_path / "a" / "run", c, tmp_path, open_dataset(c.data), {"device": "cpu"})


def test_a_run_carries_its_rules(made, tmp_path, monkeypatch):
    (tmp_path / "my.rules").unlink()
    monkeypatch.chdir("/")
    run = open_run(made.path)
    assert [rule.name for rule in run.knowledge.rules] == ["no_oak"]
    assert run.base == tmp_path.absolute()
    assert run.hierarchy == made.hierarchy
    assert len(run.dataset().val) == 2


def test_overrides_of_a_run(made):
    run = open_run(made.path, ("data.scenes.val=1",))
    assert len(run.dataset().val) == 1
    with pytest.raises(LogicDiagError, match="unknown key data.rot"):
        open_run(made.path, ("data.rot=x",))


def test_checkpoints(made):
    model = build_model(made.config.model, made.hierarchy)
    with pytest.raises(RunError, match="last.safetensors is not there; the run has no network yet"):
        made.model()
    assert load_checkpoint(made.path, "cpu") is None
    save_checkpoint(made.path, {"done": 1}, model, best=False)
    assert load_checkpoint(made.path, "cpu") == {"done": 1}
    with pytest.raises(RunError, match="best.safetensors is not there; the run has last"):
        made.model("best")
    save_checkpoint(made.path, {"done": 2}, model, best=True)
    for which in ("last", "best"):
        loaded = made.model(which)
        assert not loaded.training
        for key, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[key])
    mode = stat.S_IMODE(os.stat(made.path / "checkpoint.pt").st_mode)
    mask = os.umask(0)
    os.umask(mask)
    assert mode == 0o666 & ~mask


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"not safetensors at all"])
def test_a_network_that_is_not_whole(made, content):
    (made.path / "last.safetensors").write_bytes(content)
    with pytest.raises(
        RunError, match="last.safetensors does not hold the network that config.yaml describes"
    ) as caught:
        made.model()
    assert "\n" not in str(caught.value)


def test_what_is_no_run(tmp_path, made):
    with pytest.raises(RunError, match="is no run folder: it has no config.yaml .did you mean 'run'"):
        open_run(made.path.parent / "rnu")
    with pytest.raises(RunError, match="is no run folder"):
        open_run(tmp_path / "nowhere" / "at" / "all")
    (made.path / "hierarchy.yaml").unlink()
    with pytest.raises(LogicDiagError, match="hierarchy.yaml"):
        open_run(made.path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    c = config()
    with pytest.raises(RunError, match="the run folder cannot be written: Permission denied"):
        create_run(tmp_path / "locked" / "run", c, tmp_path, open_dataset(c.data), {})


def test_a_path_through_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    c = config()
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        create_run(tmp_path / "file" / "run", c, tmp_path, open_dataset(c.data), {})


def test_metrics_of_a_run_without_any(made):
    assert read_metrics(made.path) == []
    assert json.loads((made.path / "record.json").read_text())["data"] == "scenes"


def table(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_record():
    record, here = Record(), World()
    assert record.line(here) == {}
    names = ("loss", "conflict")
    for _ in range(2):
        for part in (1.0, 3.0):  # two parts of one step add up
            record.add(names, table((part, 0), (part, 8)))
        record.steps += 1
    kept = copy.deepcopy(record.state_dict())
    sums = record.sums
    assert record.line(here) == {"loss": 4.0, "conflict": 0.25}
    assert record.line(here) == {}
    again = Record()
    again.load_state_dict(kept, here)
    assert again.line(here) == {"loss": 4.0, "conflict": 0.25}
    other = Record()
    other.load_state_dict(kept, World(rank=1, size=2))
    assert other.steps == 2
    assert not other.sums.any()  # the first process remembers for all
    record.add(names, table((0, 0), (0, 0)))
    record.steps += 1
    assert record.line(here) == {"loss": 0.0, "conflict": 0.0}
    assert record.sums is sums  # a captured step adds there
    empty = Record()
    empty.load_state_dict(Record().state_dict(), here)
    assert empty.line(here) == {}


def test_a_record_takes_more_names_in_a_later_stage():
    record = Record()
    record.add(("loss", "loss/labeled"), torch.tensor([[2.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
    record.steps = 1
    more = ("loss", "loss/labeled", "counted")
    for _ in range(2):
        record.add(more, torch.tensor([[5.0, 0.0], [2.0, 0.0], [3.0, 4.0]], dtype=torch.float64))
        record.steps += 1
    assert record.line(World()) == {"loss": 4.0, "loss/labeled": pytest.approx(5 / 3), "counted": 0.75}


def test_a_run_in_use_is_not_joined(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    with in_use(tmp_path):
        with pytest.raises(RunError, match="is in use: another process is training into it"), in_use(tmp_path):
            pass
        with in_use(tmp_path, first=False):  # the other processes of the same training
            pass
    with in_use(tmp_path):
        pass


def test_half_written_files_are_removed(tmp_path):
    for name in (".checkpoint.pt.x1.part", ".last.safetensors.x2.part", "checkpoint.pt", ".hidden"):
        (tmp_path / name).write_text("")
    remove_parts(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", "checkpoint.pt"]


@pytest.mark.parametrize("line", ["5", "[]", '{"step": null}', '{"st', "\udcff"])
def test_damaged_metrics_are_passed_over(tmp_path, line):
    good = '{"step": 1}\n'
    (tmp_path / "metrics.jsonl").write_bytes((good + line + "\n" + good).encode("utf-8", "surrogateescape"))
    cut_metrics(tmp_path, 3)
    assert (tmp_path / "metrics.jsonl").read_text() == 2 * good


def test_ids_are_those_of_the_masks():
    h = Hierarchy.from_dict({"flat": ["road", "walk"], "sky": None})
    table = LeafTable({7: "sky", 3: "road", 4: None, 5: "walk", 9: "road"}, h)
    labels = SimpleNamespace(table=table)
    masked = SimpleNamespace(labels=labels)
    assert mask_ids(SimpleNamespace(labeled=(masked,), hierarchy=h)) == {"road": 3, "walk": 5, "sky": 7}
    permuted = SimpleNamespace(labels=Relabelled(labels, b"\x01\x00\x02"))
    assert mask_ids(SimpleNamespace(labeled=(permuted,), hierarchy=h)) == {"road": 3, "walk": 5, "sky": 7}
    unknown = SimpleNamespace(labels=None)
    assert mask_ids(SimpleNamespace(labeled=(unknown,), hierarchy=h)) == {"road": 0, "walk": 1, "sky": 2}
    colours = LeafTable({1 << 20: "sky", 3: "road", 5: "walk"}, h)
    many = SimpleNamespace(labels=SimpleNamespace(table=colours))
    assert mask_ids(SimpleNamespace(labeled=(many,), hierarchy=h)) == {"road": 0, "walk": 1, "sky": 2}


def test_a_record_is_handed_to_the_first_process():
    class Pair(World):
        def add(self, tensor):
            return tensor.mul_(2)  # another process with the same numbers

    for rank in range(2):
        record, here = Record(), Pair(rank, 2)
        record.add(("loss", "conflict"), table((3, 0), (1, 4)))
        record.steps = 1
        record.gather(here)
        assert record.sums.tolist() == ([[6, 0], [2, 8]] if rank == 0 else [[0, 0], [0, 0]])
