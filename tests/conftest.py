"""Shapes in the annotations of tensor code are checked while the tests run.

Not at the public face: what a user gets wrong there is met by the library's own errors, which the tests want to see.
"""

import os

import torch
from jaxtyping import install_import_hook

import tests.typechecker

install_import_hook(
    ["logicdiag.kernels", "logicdiag.logic.repair", "logicdiag.logic.truth"], f"{tests.typechecker.__name__}.checked"
)

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores
