import numpy as np
import pytest
import torch

from logicdiag.plan import ALIGNMENT, Layout, moved, part, under

PLAN = {
    "weight": np.array(0.5, np.float32),
    "view/gray": np.array([True, False, True]),
    "view/boxes": np.arange(12, dtype=np.int32).reshape(3, 4).T,  # not contiguous
    "psi/seeds": np.array([1 << 61, 3, 5]),
    "nothing": np.zeros((0, 4), np.float32),
}


def test_a_plan_comes_out_of_its_bytes_as_it_went_in():
    layout = Layout(PLAN)
    packed = layout.pack(PLAN)
    assert packed.dtype == torch.uint8
    assert packed.shape == (layout.size,)
    found = layout.unpack(packed)
    assert found.keys() == PLAN.keys()
    for name, array in PLAN.items():
        assert torch.equal(found[name], torch.tensor(array)), name
        assert found[name].dtype == torch.tensor(array).dtype
        assert found[name].data_ptr() % ALIGNMENT == packed.data_ptr() % ALIGNMENT


def test_new_bytes_are_seen_where_the_old_ones_were():
    """A captured step reads the same places at every replay."""
    layout = Layout(PLAN)
    static = torch.zeros(layout.size, dtype=torch.uint8)
    seen = layout.unpack(static)
    static.copy_(layout.pack(PLAN))
    assert float(seen["weight"]) == 0.5
    static.copy_(layout.pack(PLAN | {"weight": np.array(0.25, np.float32)}))
    assert float(seen["weight"]) == 0.25
    assert seen["psi/seeds"].tolist() == [1 << 61, 3, 5]


@pytest.mark.parametrize(
    "other",
    [
        {"weight": np.zeros(1, np.float32)},
        {"weight": np.array(0.5)},
        {"more": np.zeros(1)},
    ],
)
def test_layouts_differ_by_names_shapes_and_types(other):
    assert Layout(PLAN) == Layout(dict(PLAN))
    assert Layout(PLAN) != Layout(PLAN | other)


def test_moved():
    found = moved(PLAN, torch.device("cpu"))
    assert all(torch.equal(found[name], torch.tensor(array)) for name, array in PLAN.items())


def test_parts():
    plan = moved(
        under("psi", {"seeds": np.zeros(2), "more/seeds": np.zeros(1)}) | {"psim": np.zeros(3)}, torch.device("cpu")
    )
    assert part(plan, "psi").keys() == {"seeds", "more/seeds"}
    assert part(part(plan, "psi"), "more").keys() == {"seeds"}
    assert part(plan, "ps") == {}
