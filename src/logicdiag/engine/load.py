"""YAML and command-line overrides -> a typed configuration, and back. Mistakes are named by their key."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..errors import ConfigError, hint
from .config import Config

T = TypeVar("T")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration of a file, with `key.key=value` changes; the values are YAML."""
    data, overrides = read_settings(path), list(overrides)
    for override in overrides:
        put_override(data, override)
    try:
        return build(Config, data, str(path))
    except ConfigError as error:
        if not overrides or str(error) == _mistake(read_settings(path), str(path)):
            raise
    return build(Config, data, "the command line")  # for the mistake is not the file's


def _mistake(data: Mapping[str, Any], source: str) -> str | None:
    try:
        build(Config, data, source)
    except ConfigError as error:
        return str(error)
    return None


def read_settings(path: str | Path, what: str = "the configuration", keys: str = "data: and model:") -> dict[str, Any]:
    """The keys of a YAML file, not yet checked; `what` it is and which `keys` it has, for messages."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        near = hint(path.name, [p.name for p in path.parent.glob("*.y*ml")]) if path.parent.is_dir() else ""
        raise ConfigError(f"{what} {path} cannot be read: {reason}{near}") from None
    data = _yaml(text, str(path))
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected keys such as {keys}, found {_kind(data)}")
    return data


def build(kind: type[T], data: Mapping[str, Any], source: str = "configuration") -> T:
    """An instance of a dataclass from nested mappings; every value is checked against its annotation."""
    return typing.cast(T, _dataclass(kind, data, "", source))


def dump_config(config: Any) -> str:
    """The whole configuration as YAML, defaults included."""
    return yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)


def plain(value: Any) -> Any:
    """A configuration as mappings, lists and values."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


class _Twice(yaml.constructor.ConstructorError):
    """A key that was written twice, where the plain loader keeps the last."""


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise _Twice(None, None, f"{key.value} stands twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def _yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        what = "" if isinstance(error, _Twice) else "this is not YAML: "
        if "'\\t'" in problem:
            problem = "a tab stands where YAML wants spaces; indent with spaces"
        raise ConfigError(f"{source}{where}: {what}{problem}") from None


def put_override(data: dict[str, Any], override: str) -> None:
    """`key.key=value`, into nested mappings."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is no change of a setting, expected key=value, such as optimizer.lr=0.01")
    put(data, key, parse_value(text, key))


def parse_value(text: str, key: str) -> Any:
    """The value that a text stands for in YAML."""
    return _yaml(text, key) if text else None


def put(data: dict[str, Any], key: str, value: Any) -> None:
    """Set `key.key` of nested mappings."""
    *parents, last = key.split(".")
    for parent in parents:
        below = data.setdefault(parent, {})
        if below is None:
            below = data[parent] = {}
        if not isinstance(below, dict):
            raise ConfigError(f"{key} cannot be set: {parent} is {_kind(below)}, not a part of the configuration")
        data = below
    data[last] = value


def _dataclass(kind: type, data: Any, key: str, source: str) -> Any:
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: {key} is {_kind(data)}, expected keys below it")
    hints = typing.get_type_hints(kind)
    fields = {f.name for f in dataclasses.fields(kind) if f.init}
    for name in data:
        if name not in fields:
            known = "" if (near := hint(str(name), fields)) else f"; there are {', '.join(sorted(fields))}"
            raise ConfigError(f"{source}: unknown key {_join(key, name)}{near}{known}")
    values = {name: _value(hints[name], value, _join(key, name), source) for name, value in data.items()}
    return kind(**values)


def _value(kind: Any, value: Any, key: str, source: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), value, key, source)
    for option in _options(kind):
        taken = _fit(option, value)
        if taken is not _MISFIT:
            return taken
    quotes = "; put each rule in quotes" if key == "psi.rules" else ""
    raise ConfigError(f"{source}: {key} is {_kind(value)}, expected {_named(kind)}{quotes}")


_MISFIT = object()


def _fit(kind: Any, value: Any) -> Any:
    """`value` as this kind, or _MISFIT. YAML reads 1e-3 as text, so a number written as text is a number."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is float and isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (str, bool, types.NoneType) and isinstance(value, kind):
        return value
    if origin is list and isinstance(value, list):
        return _all([_fit(inside[0], item) for item in value])
    if origin is tuple and isinstance(value, (list, tuple)) and len(value) == len(inside):
        fitted = _all([_fit(k, item) for k, item in zip(inside, value, strict=True)])
        return fitted if fitted is _MISFIT else tuple(fitted)
    if origin is dict and isinstance(value, dict):
        return value
    return _MISFIT


def _all(items: list[Any]) -> Any:
    return _MISFIT if any(item is _MISFIT for item in items) else items


def _options(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _named(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", types.NoneType: "null"}
    said = []
    for option in _options(kind):
        origin, inside = typing.get_origin(option), typing.get_args(option)
        if origin is list:
            said.append(f"a list of {_named(inside[0])}")
        elif origin is tuple:
            said.append(f"a list of {len(inside)} values, each {_named(inside[0])}")
        elif origin is dict:
            said.append("a mapping")
        else:
            said.append(names.get(option, str(option)))
    return " or ".join(said)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"the list {value}"
    return "null" if value is None else repr(value)


def _join(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)
