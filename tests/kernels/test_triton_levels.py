"""How deep pixels are sure: the kernel against PyTorch; in Triton's interpreter where there is no GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logicdiag import Hierarchy
from logicdiag.logic.leaves import Leaves

kernels = pytest.importorskip("logicdiag.kernels.triton_levels", reason="needs Triton", exc_type=ImportError)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RAGGED = {"animal": {"bird": ["owl", "wren"], "cat": None}, "sky": None, "vehicle": {"car": {"taxi": {"cab": None}}}}
TREES = [
    Hierarchy.from_dict(RAGGED),
    Hierarchy.from_dict(["a", "b"]),
    Hierarchy.load("voc2012"),
    Hierarchy.load("coco"),
]


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(TREES), st.integers(0, 10**6), st.sampled_from([0.3, 0.6, 0.9]), st.booleans())
def test_the_deepest_concept_is_that_of_pytorch(h, seed, least, half):
    g = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(2, len(h), 9, 17, generator=g)).to(torch.bfloat16 if half else torch.float32)
    logits[0, :, 0, 0], logits[0, :, 0, 1] = 60.0, -60.0
    leaf = torch.randint(len(h.leaves), (2, 9, 17), generator=g)
    leaves = Leaves(h)
    probs = leaves.probs(logits.float())
    wanted, whether = leaves.deepest(probs, leaf, least)
    table = kernels.Paths.of(h.parents, DEVICE)
    small = leaf.to(torch.uint8).to(DEVICE)
    sure, some = kernels.deepest(table, logits.to(DEVICE).flatten(2), small.flatten(1), least)
    sure, some = sure.view_as(leaf).cpu().long(), some.view_as(leaf).cpu()
    clear = ((probs - least).abs() > 1e-4).all(1)  # elsewhere rounding decides
    assert clear.float().mean() > 0.9
    assert torch.equal(sure[clear], wanted[clear])
    assert torch.equal(some[clear], whether[clear])
