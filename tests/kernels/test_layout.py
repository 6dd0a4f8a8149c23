import random

from logicdiag.kernels.layout import ROOT, Layout
from tests.cases import random_hierarchy


def test_siblings_are_neighbours_and_parents_come_first():
    rng = random.Random(0)
    for _ in range(200):
        h = random_hierarchy(rng, 30)
        layout = Layout.of(h.parents)
        assert sorted(layout.order) == list(range(len(h)))
        assert all(layout.order[row] == channel for channel, row in enumerate(layout.row_of))
        covered = []
        for group in layout.groups:
            parent = ROOT if group.parent == ROOT else layout.order[group.parent]
            assert [layout.order[row] for row in range(group.start, group.stop)] == list(h.group(parent))
            assert group.parent < group.start
            covered += range(group.start, group.stop)
        assert covered == list(range(len(h)))
        assert [layout.order[row] for row in layout.leaf_rows] == list(h.leaf_indices)
