"""The few pieces a page is made of. Text is escaped here and nowhere else; `Markup` is what is escaped already."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count


class Markup(str):
    """HTML, not text."""

    __slots__ = ()


Content = str | float | int | None


def text(value: Content) -> Markup:
    """A value as HTML: text escaped, nothing as a dash."""
    if isinstance(value, Markup):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Markup("–")
    return Markup(escape(str(value)))


def element(tag: str, *content: Content, **attributes: Content) -> Markup:
    """`class_` is class, and `aria_label` is aria-label.

    >>> element("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    return Markup(f"<{tag}{_attributes(attributes)}>{''.join(map(text, content))}</{tag}>")


def joined(parts: Iterable[Content], between: str = "\n") -> Markup:
    return Markup(between.join(map(text, parts)))


def picture(source: str, alt: str, caption: Content, size: tuple[int, int]) -> Markup:
    shown = f"<img{_attributes({'src': source, 'alt': alt, 'width': size[0], 'height': size[1]})}>"
    return element("figure", Markup(shown), element("figcaption", caption))


def table(
    caption: str, head: Sequence[Content], rows: Iterable[Sequence[Content]], numbers: bool = True, class_: str = ""
) -> Markup:
    """The first cell of a row is its header; a cell that is a `Cell` brings its own look.

    Wide tables scroll by themselves, also by keyboard.
    """
    columns = [element("th", cell, scope="col") for cell in head]
    body = []
    for first, *rest in rows:
        cells = [cell if isinstance(cell, Cell) else element("td", cell) for cell in rest]
        body.append(element("tr", element("th", first, scope="row"), *cells))
    look = f"{'numbers ' if numbers else ''}{class_}".strip()
    inner = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *columns)),
        element("tbody", *body),
        class_=look or None,
    )
    return element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


class Cell(Markup):
    """A whole `td`."""

    __slots__ = ()


def shaded(share: float | None, own: bool = False) -> Cell:
    """A share in per cent on a shade of it; `own` marks the diagonal of a confusion matrix."""
    if share is None or math.isnan(share):
        return Cell(element("td", None))
    shade = Markup(f' style="--s:{min(1.0, max(0.0, share)):.2f}"')
    mark = ' class="own"' if own else ' class="shade"'
    return Cell(f"<td{mark}{shade}>{percent(share, 1)}</td>")


def folded(summary: str, *content: Content, printed: bool = True) -> Markup:
    """What one need not see at first; on paper it is unfolded, unless it is not `printed`."""
    return element("details", element("summary", summary), *content, class_="print" if printed else None)


def percent(share: float | None, digits: int = 2) -> str:
    return "–" if share is None or math.isnan(share) else f"{100 * share:.{digits}f}"


class Headings:
    """Sections with headings in order, and a list of them."""

    def __init__(self) -> None:
        self.contents: list[tuple[str, str]] = []
        self._numbers = count(1)

    def section(self, title: str, *content: Content) -> Markup:
        ident = f"s{next(self._numbers)}"
        self.contents.append((ident, title))
        return element(
            "section", element("h2", title, id=f"{ident}-h"), *content, id=ident, aria_labelledby=f"{ident}-h"
        )

    def nav(self) -> Markup:
        links = [element("li", element("a", title, href=f"#{ident}")) for ident, title in self.contents]
        return element("nav", element("ol", *links), aria_label="Contents")


def _attributes(attributes: dict[str, Content]) -> str:
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    return "".join(f' {name}="{escape(str(value))}"' for name, value in named)
