"""Shapes in the annotations of tensor code are checked while the tests run.

Not at the public face: what a user gets wrong there is met by the library's own errors, which the tests want to see.
"""

import os

import torch
from jaxtyping import install_import_hook

import tests.typechecker

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton's kernels are imported

CHECKED = [
    *(f"logicdiag.kernels.{n}" for n in ("automaton", "layout", "native", "paths", "reference", "taken", "truth")),
    "logicdiag.logic.repair",
    "logicdiag.logic.truth",
]
install_import_hook(CHECKED, f"{tests.typechecker.__name__}.checked")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores
