"""timm can be imported, whatever torchvision stands beside torch; in processes of their own."""

import subprocess
import sys

import pytest

from logicdiag.errors import OptionError
from logicdiag.models import torchvision_shim


def python(script: str, *path: str) -> subprocess.CompletedProcess:
    lines = f"import sys; sys.path[:0] = {list(path)!r}\n{script}"
    return subprocess.run([sys.executable, "-W", "error", "-c", lines], capture_output=True, text=True, check=False)


def fake_torchvision(folder, init: str, extension: bool) -> str:
    """A torchvision that describes its operators on import, as the real one does, with or without a broken library."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(init)
    if extension:
        (folder / "torchvision" / "_C.so").write_bytes(b"not a library")
    return str(folder)


FAKE_NMS = "import torch\ntorch.library.register_fake('torchvision::nms')(lambda dets, scores, iou_threshold: dets)\n"
DEFINE = "from logicdiag.models.torchvision_shim import define_missing_operators\n"


def test_timm_is_imported_without_a_warning():
    done = python("from logicdiag.models.torchvision_shim import import_timm; import_timm().create_model('resnet18')")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_torchvision_without_its_library_is_imported_only_with_the_shim(tmp_path):
    place = fake_torchvision(tmp_path, FAKE_NMS, extension=True)
    assert "operator torchvision::nms does not exist" in python("import torchvision", place).stderr
    done = python(f"{DEFINE}assert define_missing_operators() is not None; import torchvision", place)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_defined_where_torchvision_loads_by_itself(tmp_path):
    own = (
        "import torch\nlibrary = torch.library.Library('torchvision', 'DEF')\n"
        "library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
    )
    place = fake_torchvision(tmp_path, own + FAKE_NMS, extension=False)
    done = python(f"import torchvision\n{DEFINE}assert define_missing_operators() is None", place)
    assert (done.returncode, done.stderr) == (0, "")


def test_timm_missing(monkeypatch):
    monkeypatch.setattr(torchvision_shim.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install timm"):
        torchvision_shim.import_timm()
