"""What was computed and may be asked for again: the newest, up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """Least recently used goes first; the newest always stays.

    >>> kept = Kept[str](10)
    >>> kept.put("a", "first", 6), kept.put("b", "second", 6)
    (None, None)
    >>> kept.get("a"), kept.get("b")
    (None, 'second')
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key not in self._found:
                return None
            self._found.move_to_end(key)
            return self._found[key][0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        with self._lock:
            self._found[key] = (value, size)
            self._found.move_to_end(key)
            while len(self._found) > 1 and sum(size for _, size in self._found.values()) > self.most:
                self._found.popitem(last=False)
