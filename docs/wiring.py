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


def supervised() -> Drawing:
    nodes = {
        "x": Node(0, 0, "view", "x"),
        "student": Node(0.6, 0, "student", "student"),
        "p": Node(1.5, 0, "out", "p"),
        "y": Node(2.4, 0, "target", "y"),
    }
    return nodes, [Edge("x", "student"), Edge("student", "p"), Edge("p", "y", "loss")]


def taught(strong: str) -> Drawing:
    """One strong view, which learns what the teacher says of the weak one."""
    nodes = {
        "x": Node(0, 0, "view", "x"),
        "a": Node(0, 1, "view", strong),
        "u": Node(0, 2.6, "view", "u"),
        "student": Node(0.6, 0, "student", "student", rows=2),
        "teacher": Node(0.6, 2.6, "teacher", "teacher"),
        "p": Node(1.5, 0, "out", "p"),
        "q": Node(1.5, 1, "out", "p"),
        "psi": Node(1.5, 2.6, "psi", "psi"),
        "y": Node(2.4, 0, "target", "y"),
        "labels": Node(2.4, 1, "target", "labels"),
        "mixed": Node(2.4, 2.6, "out", f"mixed as {strong} is"),
    }
    edges = [
        *(Edge(a, "student") for a in "xa"),
        *(Edge("student", b) for b in "pq"),
        Edge("p", "y", "loss"),
        Edge("q", "labels", "loss", "lambda"),
        Edge("u", "teacher"),
        Edge("teacher", "psi"),
        Edge("psi", "mixed"),
        Edge("mixed", "labels"),
        Edge("student", "teacher", "average", "average"),
    ]
    return nodes, edges


def unimatch() -> Drawing:
    nodes = {
        "student": Node(0.6, 0, "student", "student", rows=4),
        "teacher": Node(0.6, 4.6, "teacher", "teacher"),
        "weak": Node(0, 4.6, "view", "u"),
        "psi": Node(1.5, 4.6, "psi", "psi"),
        "labels": Node(3.8, 4.6, "out", "labels"),
    }
    views = ("x", "A1(u)", "A2(u)", "u")
    said = ("p", "p", "p", "p, half of its features dropped")
    learned = ("y", "labels, mixed as A1(u) is", "labels, mixed as A2(u) is", "labels")
    edges = []
    for row, (view, out, target) in enumerate(zip(views, said, learned, strict=True)):
        nodes |= {
            f"view{row}": Node(0, row, "view", view),
            f"p{row}": Node(1.5, row, "out", out),
            f"target{row}": Node(3.8, row, "target", target),
        }
        label = ("", "lambda / 4", "lambda / 4", "lambda / 2")[row]
        edges += [
            Edge(f"view{row}", "student"),
            Edge("student", f"p{row}"),
            Edge(f"p{row}", f"target{row}", "loss", label),
        ]
    edges += [Edge("weak", "teacher"), Edge("teacher", "psi"), Edge("psi", "labels"), Edge("labels", "target3")]
    return nodes, [*edges, Edge("student", "teacher", "average", "average")]


def _pair(
    strong: str, learned: tuple[tuple[tuple[str, str], ...], ...], said: tuple[str, str], labels: Drawing
) -> Drawing:
    """Two students, one below the other, with what each learns; below them, where the labels come from."""
    nodes, edges = dict(labels[0]), list(labels[1])
    for number, targets in enumerate(learned):
        row = number * (len(targets) + 0.3)
        middle = (len(targets) - 1) / 2
        nodes |= {
            f"x{number}": Node(0, row + middle - 0.5, "view", "x"),
            f"a{number}": Node(0, row + middle + 0.5, "view", strong),
            f"s{number}": Node(0.6, row, "student", f"student {number + 1}", rows=len(targets)),
            f"p{number}": Node(1.6, row + middle, "out", said[number]),
        }
        edges += [Edge(f"{view}{number}", f"s{number}") for view in "xa"]
        edges.append(Edge(f"s{number}", f"p{number}"))
        for place, (target, label) in enumerate(targets):
            nodes[f"t{number}{place}"] = Node(3.6, row + place, "target", target)
            edges.append(Edge(f"p{number}", f"t{number}{place}", "loss", label))
    return nodes, edges


def _labelling(first: float, kind: str, view: str, names: tuple[str, str]) -> Drawing:
    nodes, edges = {}, []
    for number, name in enumerate(names):
        row = first + number
        nodes |= {
            f"u{number}": Node(0, row, "view", view),
            f"n{number}": Node(0.6, row, kind, f"{kind} {number + 1}"),
            f"psi{number}": Node(1.6, row, "psi", "psi"),
            f"mix{number}": Node(2.2, row, "out", "mixed as the views are"),
            f"name{number}": Node(3.6, row, "target", name),
        }
        chain = ("u", "n", "psi", "mix", "name")
        edges += [Edge(f"{a}{number}", f"{b}{number}") for a, b in pairwise(chain)]
    return nodes, edges


def cps() -> Drawing:
    learned = tuple((("y, of x", ""), (f"labels {other}; of x, psi(p{other})", "lambda")) for other in (2, 1))
    return _pair("M(u)", learned, ("p1", "p2"), _labelling(4.8, "student", "u", ("labels 1", "labels 2")))


def mkd() -> Drawing:
    learned = tuple(
        (("y, of x", ""), (f"labels T{other}", "1.5 lambda"), (f"psi(p{other})", "lambda")) for other in (2, 1)
    )
    said = ("p1, features of A(u) dropped", "p2, features of A(u) dropped")
    return _pair("A(u)", learned, said, _labelling(6.9, "teacher", "x, u", ("labels T1", "labels T2")))


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
    nodes = {
        "px": Node(0, 0, "view", "P(x)"),
        "a": Node(0, 1, "view", "A(u)"),
        "u": Node(0, 2.6, "view", "u"),
        "student": Node(0.6, 0, "student", "student", rows=2),
        "teacher": Node(0.6, 2.6, "teacher", "teacher"),
        "p": Node(1.5, 0, "out", "p"),
        "q": Node(1.5, 1, "out", "p"),
        "psi": Node(1.5, 2.6, "psi", "psi"),
        "y": Node(4.0, 0, "target", "P(y)"),
        "labels": Node(4.0, 1, "target", "labels"),
        "sampled": Node(2.3, 2.6, "out", "sampled pixels,"),
        "mixed": Node(4.0, 2.6, "out", "mixed as A(u) is"),
        "sure": Node(0, 4, "out", "how sure p is of each class where it is true"),
        "bank": Node(2.3, 4, "store", "bank"),
        "rates": Node(3.05, 4, "out", "class to cut for A, class to paste for P, rate of sampling"),
    }
    edges = [
        *(Edge(view, "student") for view in ("px", "a")),
        *(Edge("student", out) for out in "pq"),
        Edge("p", "y", "loss"),
        Edge("q", "labels", "loss", "lambda, weighed by (max p of the teacher)^2"),
        Edge("u", "teacher"),
        Edge("teacher", "psi"),
        Edge("psi", "sampled"),
        Edge("sampled", "mixed"),
        Edge("mixed", "labels"),
        Edge("sure", "bank"),
        Edge("bank", "rates"),
        Edge("student", "teacher", "average", "average"),
    ]
    return nodes, edges


def stpp() -> Drawing:
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    for stage, row in ((1, 0.0), (2, 1.6), (3, 5.2)):
        nodes |= {
            f"stage{stage}": Node(0, row, "out", f"{stage}."),
            f"x{stage}": Node(0.35, row, "view", "x"),
            f"s{stage}": Node(0.95, row, "student", "new student", rows=1 if stage == 1 else 2),
            f"p{stage}": Node(2.0, row, "out", "p"),
            f"y{stage}": Node(2.9, row, "target", "y"),
        }
        edges += [
            Edge(f"x{stage}", f"s{stage}"),
            Edge(f"s{stage}", f"p{stage}"),
            Edge(f"p{stage}", f"y{stage}", "loss"),
        ]
        if stage == 1:
            continue
        which = "the stable half" if stage == 2 else "all images"
        nodes |= {
            f"a{stage}": Node(0.35, row + 1, "view", "A(u)"),
            f"q{stage}": Node(2.0, row + 1, "out", "p"),
            f"labels{stage}": Node(2.9, row + 1, "target", "labels"),
            f"u{stage}": Node(0.35, row + 2.2, "view", "u"),
            f"frozen{stage}": Node(0.95, row + 2.2, "frozen", f"frozen, of {stage - 1}."),
            f"psi{stage}": Node(2.0, row + 2.2, "psi", "psi"),
            f"mix{stage}": Node(2.9, row + 2.2, "out", "mixed as A(u) is"),
            f"which{stage}": Node(4.0, row + 1, "out", f"u: {which}"),
        }
        edges += [
            Edge(f"a{stage}", f"s{stage}"),
            Edge(f"s{stage}", f"q{stage}"),
            Edge(f"q{stage}", f"labels{stage}", "loss", "lambda"),
            Edge(f"u{stage}", f"frozen{stage}"),
            Edge(f"frozen{stage}", f"psi{stage}"),
            Edge(f"psi{stage}", f"mix{stage}"),
            Edge(f"mix{stage}", f"labels{stage}"),
        ]
    return nodes, edges


def algorithm1() -> Drawing:
    nodes = {
        "x": Node(0, 0, "view", "x"),
        "u": Node(0, 1, "view", "u"),
        "student": Node(0.6, 0, "student", "student", rows=2),
        "p": Node(1.5, 0, "out", "p, of x"),
        "q": Node(1.5, 1, "out", "p, of both"),
        "y": Node(2.7, 0, "target", "y"),
        "labels": Node(2.7, 1, "target", "psi(p)"),
    }
    edges = [
        *(Edge(view, "student") for view in "xu"),
        *(Edge("student", out) for out in "pq"),
        Edge("p", "y", "loss"),
        Edge("q", "labels", "loss", "lambda"),
    ]
    return nodes, edges


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
