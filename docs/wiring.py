"""The pictures of docs/methods.md: how views, networks and psi of each method are wired.

python docs/wiring.py      # writes docs/images/methods/*.svg; needs nothing but Python
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent / "images" / "methods"
COLUMN, ROW, TALL, CHARACTER = 160, 50, 32, 7.1
"""Pixels: from a column to the next, from a row to the next, a box's height, and a character's width."""
LEFT, TOP = 14, 14
FILL = {
    "view": "#f1f3f5",
    "student": "#cfe2f3",
    "teacher": "#fde9d0",
    "frozen": "#e3e3ee",
    "psi": "#d5ead8",
    "out": "#ffffff",
    "target": "#fff2b3",
    "store": "#e8dcf2",
}
DASHED = ("teacher", "frozen")
"""Networks that are never trained."""
ROUND = ("view", "psi")


@dataclass(frozen=True)
class Node:
    """At a column and a row, or as tall as several rows."""

    column: float
    row: float
    kind: str
    text: str
    rows: int = 1

    @property
    def width(self) -> float:
        return max(44.0, len(self.text) * CHARACTER + 18)

    @property
    def height(self) -> float:
        return TALL + (self.rows - 1) * ROW

    @property
    def left(self) -> float:
        return LEFT + self.column * COLUMN

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def top(self) -> float:
        return TOP + self.row * ROW

    @property
    def middle(self) -> tuple[float, float]:
        return self.left + self.width / 2, self.top + self.height / 2

    def svg(self) -> str:
        x, y = self.middle
        radius = TALL / 2 if self.kind in ROUND else 4
        dash = ' stroke-dasharray="5 3"' if self.kind in DASHED else ""
        stroke = "none" if self.kind == "out" else "#555"
        return (
            f'<rect x="{self.left:.0f}" y="{self.top:.0f}" width="{self.width:.0f}" height="{self.height:.0f}" '
            f'rx="{radius:.0f}" fill="{FILL[self.kind]}" stroke="{stroke}"{dash}/>\n'
            f'<text x="{x:.0f}" y="{y + 4.5:.0f}" text-anchor="middle">{escape(self.text)}</text>\n'
        )


@dataclass(frozen=True)
class Edge:
    """`flow`, `loss` (the first learns the second), or `average` (the second follows the first)."""

    start: str
    end: str
    kind: str = "flow"
    label: str = ""

    def svg(self, nodes: dict[str, Node]) -> str:
        a, b = nodes[self.start], nodes[self.end]
        ax, ay = a.middle
        bx, by = b.middle
        if self.kind == "average":
            points = [(ax, a.top + a.height), (ax, b.top)] if b.row > a.row else [(ax, a.top), (ax, b.top + b.height)]
        elif b.left > a.right:
            y = ay if b.rows > 1 and b.top <= ay <= b.top + b.height else by
            if a.rows > 1 and a.top <= by <= a.top + a.height:
                ay = y = by
            bend = a.right + 14 if self.kind == "loss" else b.left - 16
            points = [(a.right, ay), (b.left, y)] if ay == y else [(a.right, ay), (bend, ay), (bend, y), (b.left, y)]
        else:  # below or above: up into it, or down
            points = [(bx, a.top), (bx, b.top + b.height)] if b.row < a.row else [(bx, a.top + a.height), (bx, b.top)]
        path = "M" + " L".join(f"{x:.0f} {y:.0f}" for x, y in points)
        out = f'<path d="{path}" class="{self.kind}" marker-end="url(#{self.kind})"/>\n'
        if self.label:
            (x, y), (end, _) = points[-2], points[-1]
            if self.kind == "average":
                out += f'<text x="{x + 6:.0f}" y="{(points[0][1] + points[1][1]) / 2 + 4:.0f}" class="small">'
            else:
                out += f'<text x="{(x + end) / 2:.0f}" y="{points[-1][1] - 6:.0f}" class="small {self.kind}" '
                out += 'text-anchor="middle">'
            out += f"{escape(self.label)}</text>\n"
        return out


STYLE = """<style>
text { font: 13px "DejaVu Sans", Verdana, sans-serif; fill: #222 }
.small { font-size: 11px; fill: #555 }
.loss { fill: none; stroke: #c0392b; stroke-width: 2.5 }
.flow { fill: none; stroke: #555; stroke-width: 1.3 }
.average { fill: none; stroke: #888; stroke-width: 1.3; stroke-dasharray: 3 3 }
text.small { stroke: none }
text.loss { fill: #c0392b }
</style>
"""


def _marker(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 1 L9 5 L0 9 z" fill="{colour}"/></marker>\n'
    )


def svg(nodes: dict[str, Node], edges: list[Edge], title: str) -> str:
    width = max(node.right for node in nodes.values()) + LEFT
    height = max(node.top + node.height for node in nodes.values()) + TOP
    markers = _marker("flow", "#555") + _marker("loss", "#c0392b") + _marker("average", "#888")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img">\n'
        f"<title>{escape(title)}</title>\n{STYLE}<defs>\n{markers}</defs>\n"
        f'<rect width="100%" height="100%" fill="white"/>\n'
        + "".join(edge.svg(nodes) for edge in edges)
        + "".join(node.svg() for node in nodes.values())
        + "</svg>\n"
    )


Drawing = tuple[dict[str, Node], list[Edge]]


def legend() -> Drawing:
    nodes = {
        "x": Node(0, 0, "view", "x"),
        "of x": Node(0.45, 0, "out", "labelled view; y: its mask"),
        "u": Node(2.3, 0, "view", "u"),
        "of u": Node(2.75, 0, "out", "weak view of an unlabelled image"),
        "A": Node(0, 1, "view", "A(u)"),
        "of A": Node(0.45, 1, "out", "strong view: colours, blur, CutMix"),
        "M": Node(2.3, 1, "view", "M(u)"),
        "of M": Node(2.75, 1, "out", "CutMix alone"),
        "student": Node(0, 2, "student", "student"),
        "of student": Node(0.7, 2, "out", "a network that is trained"),
        "teacher": Node(2.3, 2, "teacher", "teacher"),
        "of teacher": Node(3.0, 2, "out", "its moving average, never trained"),
        "psi": Node(0, 3, "psi", "psi"),
        "of psi": Node(0.45, 3, "out", "labels of a prediction p"),
        "p": Node(2.3, 3, "out", "p"),
        "labels": Node(3.1, 3, "target", "labels"),
        "of labels": Node(3.7, 3, "out", "a loss: p learns them"),
    }
    return nodes, [Edge("p", "labels", "loss")]


Learned = tuple[str, str, str, str]
"""A view, what the student says of it, what that learns, and the weight of the loss."""


def _student(rows: list[Learned], target: float, column: float = 0, row: float = 0, text: str = "student") -> Drawing:
    """One pass of a student over several views; their parts are called by the row, those of the first x0, p0 and t0."""
    name = f"student{row:g}"
    nodes, edges = {name: Node(column + 0.6, row, "student", text, rows=len(rows))}, []
    for place, (view, said, learned, weight) in enumerate(rows):
        number = f"{row + place:g}"
        nodes |= {
            f"x{number}": Node(column, row + place, "view", view),
            f"p{number}": Node(column + 1.5, row + place, "out", said),
            f"t{number}": Node(target, row + place, "target", learned),
        }
        edges += [
            Edge(f"x{number}", name),
            Edge(name, f"p{number}"),
            Edge(f"p{number}", f"t{number}", "loss", weight),
        ]
    return nodes, edges


def _chain(*nodes: Node) -> Drawing:
    """One after the other, called by their row and place."""
    named = {f"{nodes[0].row:g}/{place}": node for place, node in enumerate(nodes)}
    return named, [Edge(a, b) for a, b in pairwise(named)]


def _drawn(*drawings: Drawing, more: tuple[Edge, ...] = ()) -> Drawing:
    nodes = {name: node for drawing in drawings for name, node in drawing[0].items()}
    return nodes, [*(edge for drawing in drawings for edge in drawing[1]), *more]


AVERAGE = Edge("student0", "2.6/1", "average", "average")


def _teacher(row: float, *said: Node) -> Drawing:
    return _chain(Node(0, row, "view", "u"), Node(0.6, row, "teacher", "teacher"), Node(1.5, row, "psi", "psi"), *said)


def supervised() -> Drawing:
    return _student([("x", "p", "y", "")], 2.4)


def taught(strong: str) -> Drawing:
    """One strong view, which learns what the teacher says of the weak one."""
    return _drawn(
        _student([("x", "p", "y", ""), (strong, "p", "labels", "lambda")], 2.4),
        _teacher(2.6, Node(2.4, 2.6, "out", f"mixed as {strong} is")),
        more=(Edge("2.6/3", "t1"), AVERAGE),
    )


def unimatch() -> Drawing:
    rows = [
        ("x", "p", "y", ""),
        ("A1(u)", "p", "labels, mixed as A1(u) is", "lambda / 4"),
        ("A2(u)", "p", "labels, mixed as A2(u) is", "lambda / 4"),
        ("u", "p, half of its features dropped", "labels", "lambda / 2"),
    ]
    return _drawn(
        _student(rows, 3.8),
        _teacher(4.6, Node(3.8, 4.6, "out", "labels")),
        more=(Edge("4.6/3", "t3"), Edge("student0", "4.6/1", "average", "average")),
    )


def _pair(strong: str, said: str, learned: list[tuple[str, str]], labels: tuple[str, str, str]) -> Drawing:
    """Two students, of which each learns from the other; below, who makes the labels, of what, and their name.

    In what is learned and said, # is a number, that of the other network and its own.
    """
    drawings: list[Drawing] = []
    for own, other in ((1, 2), (2, 1)):
        row, middle = (own - 1) * (len(learned) + 0.3), (len(learned) - 1) / 2
        nodes = {
            f"x{own}": Node(0, row + middle - 0.5, "view", "x"),
            f"a{own}": Node(0, row + middle + 0.5, "view", strong),
            f"s{own}": Node(0.6, row, "student", f"student {own}", rows=len(learned)),
            f"p{own}": Node(1.6, row + middle, "out", said.replace("#", str(own))),
        }
        edges = [Edge(f"x{own}", f"s{own}"), Edge(f"a{own}", f"s{own}"), Edge(f"s{own}", f"p{own}")]
        for place, (target, weight) in enumerate(learned):
            nodes[f"t{own}{place}"] = Node(3.6, row + place, "target", target.replace("#", str(other)))
            edges.append(Edge(f"p{own}", f"t{own}{place}", "loss", weight))
        drawings.append((nodes, edges))
    kind, views, name = labels
    for own in (1, 2):
        row = 2 * len(learned) + own - 0.2
        drawings.append(
            _chain(
                Node(0, row, "view", views),
                Node(0.6, row, kind, f"{kind} {own}"),
                Node(1.6, row, "psi", "psi"),
                Node(2.2, row, "out", "mixed as the views are"),
                Node(3.6, row, "target", name.replace("#", str(own))),
            )
        )
    return _drawn(*drawings)


def cps() -> Drawing:
    learned = [("y, of x", ""), ("labels #; of x, psi(p#)", "lambda")]
    return _pair("M(u)", "p#", learned, ("student", "u", "labels #"))


def mkd() -> Drawing:
    learned = [("y, of x", ""), ("labels T#", "1.5 lambda"), ("psi(p#)", "lambda")]
    return _pair("A(u)", "p#, features of A(u) dropped", learned, ("teacher", "x, u", "labels T#"))


def u2pl() -> Drawing:
    nodes = {
        "x": Node(0, 0.5, "view", "x"),
        "a": Node(0, 2.5, "view", "A(u)"),
        "student": Node(0.6, 0, "student", "student", rows=4),
        "p": Node(1.5, 0, "out", "p, of x"),
        "q": Node(1.5, 1, "out", "p, of A(u)"),
        "z": Node(1.5, 2.5, "out", "z, of both"),
        "y": Node(4.1, 0, "target", "y"),
        "labels": Node(4.1, 1, "target", "labels"),
        "means": Node(4.1, 2, "target", "mean z of its class"),
        "not": Node(4.1, 3, "store", "and not: queue of its class"),
        "xu": Node(0, 6.1, "view", "x, u"),
        "teacher": Node(0.6, 4.6, "teacher", "teacher", rows=4),
        "psi": Node(1.5, 4.6, "psi", "psi"),
        "reliable": Node(2.2, 4.6, "out", "reliable pixels, mixed"),
        "made": Node(4.1, 4.6, "target", "labels"),
        "sure": Node(1.5, 5.6, "out", "z of sure pixels"),
        "mean": Node(4.1, 5.6, "target", "mean z of each class"),
        "doubtful": Node(1.5, 6.6, "out", "z of unreliable pixels, ranked 4th to 20th"),
        "masked": Node(1.5, 7.6, "out", "z of labelled pixels, ranked 1st to 3rd, not it"),
        "queue": Node(4.1, 6.6, "store", "queue of each class", rows=2),
    }
    edges = [
        *(Edge(view, "student") for view in "xa"),
        *(Edge("student", out) for out in "pqz"),
        Edge("p", "y", "loss"),
        Edge("q", "labels", "loss", "lambda * pixels / reliable pixels"),
        Edge("z", "means", "loss", "0.1 lambda"),
        Edge("z", "not", "loss"),
        Edge("xu", "teacher"),
        *(Edge("teacher", out) for out in ("psi", "sure", "doubtful", "masked")),
        Edge("psi", "reliable"),
        Edge("reliable", "made"),
        Edge("sure", "mean"),
        Edge("doubtful", "queue"),
        Edge("masked", "queue"),
        Edge("student", "teacher", "average", "average"),
    ]
    return nodes, edges


def ael() -> Drawing:
    weight = "lambda, weighed by (max p of the teacher)^2"
    return _drawn(
        _student([("P(x)", "p", "P(y)", ""), ("A(u)", "p", "labels", weight)], 4.0),
        _teacher(2.6, Node(2.3, 2.6, "out", "sampled pixels,"), Node(4.0, 2.6, "out", "mixed as A(u) is")),
        _chain(
            Node(0, 4, "out", "how sure p is of each class where it is true"),
            Node(2.3, 4, "store", "bank"),
            Node(3.05, 4, "out", "class to cut for A, class to paste for P, rate of sampling"),
        ),
        more=(Edge("2.6/4", "t1"), AVERAGE),
    )


def stpp() -> Drawing:
    labelled = ("x", "p", "y", "")
    drawings = [_student([labelled], 2.9, 0.35, 0, "new student"), _chain(Node(0, 0, "out", "1."))]
    more = []
    for stage, row, which in ((2, 1.6, "the stable half"), (3, 5.2, "all images")):
        drawings += [
            _student([labelled, ("A(u)", "p", "labels", "lambda")], 2.9, 0.35, row, "new student"),
            _chain(
                Node(0.35, row + 2.2, "view", "u"),
                Node(0.95, row + 2.2, "frozen", f"frozen, of {stage - 1}."),
                Node(1.9, row + 2.2, "psi", "psi"),
                Node(2.9, row + 2.2, "out", "mixed as A(u) is"),
            ),
            _chain(Node(0, row, "out", f"{stage}.")),
            _chain(Node(3.6, row + 1, "out", f"u: {which}")),
        ]
        more.append(Edge(f"{row + 2.2:g}/3", f"t{row + 1:g}"))
    return _drawn(*drawings, more=tuple(more))


def algorithm1() -> Drawing:
    return _student([("x", "p, of x", "y", ""), ("u", "p, of both", "psi(p)", "lambda")], 2.7)


PICTURES: dict[str, Drawing] = {
    "legend": legend(),
    "supervised": supervised(),
    "fixmatch": taught("A(u)"),
    "mean_teacher": taught("M(u)"),
    "unimatch": unimatch(),
    "cps": cps(),
    "mkd": mkd(),
    "u2pl": u2pl(),
    "ael": ael(),
    "st++": stpp(),
    "algorithm1": algorithm1(),
}


def pictures() -> dict[str, str]:
    """SVG by the name of the file."""
    return {f"{name.replace('+', 'p')}.svg": svg(*drawing, title=name) for name, drawing in PICTURES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, "utf-8")
