"""Slimmable networks: run with the first share of every layer's channels (Yu et al. 2019; IPKD-TA, section II-C).

Every width has batch norms of its own (affine and statistics); all other weights are shared. A width that was not
trained gets its norms from `settle`: affine values from the next larger trained width, statistics from data.

How many channels a layer keeps depends on how many it has, and on nothing else: so the sides of a residual addition
agree by themselves, and any network of convolutions, batch norms and linear layers can be narrowed that joins its
channels by additions and products. Which layers there are, what each is given and which of them give the answers is
seen in a run on the meta device; whatever does not fit together there is refused by name.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from supple.cost import on_meta
from supple.errors import PointError, RecipeError
from supple.methods.static import Static
from supple.methods.widths import Widths
from supple.model import Batches, FlexibleModel, Shape, example
from supple.point import AnyPoint, Point, as_point
from supple.text import one_line

L = TypeVar("L", bound=nn.Module)


class Slim(Widths):
    """Points `width=0.25` ... `full` over a convolutional network."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        widths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0),  # trained widths, the last one 1
        divisor: int = 8,  # kept channels are a multiple of this, where the layer has as many
        input_shape: Shape = (),
    ) -> None:
        check_widths(widths)
        channels = Channels(Static(backbone), widths[:-1], divisor, input_shape)
        super().__init__(channels.model, widths[:-1], channels)
        self.norms = channels.norms

    def validate(self, point: Point) -> None:
        if point in (*self.points, *self.settled):
            return
        trained = ", ".join(f"{width:g}" for width in (*self.widths, 1.0))
        more = "".join(f", {settled.width:g} (settled)" for settled in self.settled)
        if point.width < (*self.widths, 1.0)[0]:
            cure = f"Use one of these; only widths from {self.widths[0]:g} can be settled."
        else:
            cure = (
                f"Use one of these, or settle it first: supple train --settle {point} RUN (needs the training images)."
            )
        raise PointError(f"this model cannot run {point!r}: it was trained at widths {trained}{more}.", cure)

    def rates(self) -> Mapping[str, float]:
        return rates_of_norms(super().rates(), self.norms)

    def add_points(self, points: Iterable[AnyPoint]) -> None:
        for point in map(as_point, points):
            if point in (*self.points, *self.settled):
                continue
            if point != Point(width=point.width) or point.width < (*self.widths, 1.0)[0]:
                self.check(point)
            channels = cast(Channels, self._narrowing)
            channels.add(point.width, next(width for width in (*self.widths, 1.0) if width > point.width))
            self.settled = tuple(sorted((*self.settled, point), key=self.rank))

    def settle(self, loader: Batches, points: Iterable[AnyPoint] = ()) -> None:
        """Adds more widths and takes their norm statistics as the plain mean over the loader's batches."""
        more = [point for point in map(as_point, points) if point not in self.points]
        self.add_points(more)
        settle_norms(self, loader, more)


def check_widths(widths: Sequence[float]) -> None:
    if list(widths) != sorted(set(widths)) or not widths or widths[0] <= 0 or widths[-1] != 1:
        raise RecipeError(f"method.widths is {list(widths)}: they must rise, above 0, to 1.", "For example 0.5, 1.")


def kept(channels: int, width: float, divisor: int) -> int:
    """How many of a layer's channels a width keeps: rounded to a multiple of `divisor`, never none, never more."""
    if width == 1:
        return channels
    return min(channels, max(divisor, int(channels * width / divisor + 0.5) * divisor))


# --- a narrower model -------------------------------------------------------------------------------------------------


class Channels:
    """The narrowing of convolutional networks. It holds the batch norms of each width, by width and path."""

    def __init__(self, model: FlexibleModel, widths: Sequence[float], divisor: int, input_shape: Shape) -> None:
        if divisor < 1:
            raise RecipeError(f"method.divisor is {divisor}.", "Use 1 or more; 8 suits most processors.")
        if not input_shape:
            raise RecipeError("the shape of an input is not known.", "Say it: input_shape=(3, 224, 224).")
        self.model, self.divisor, self.input_shape = model, divisor, input_shape
        self.answers = answering_layers(model, input_shape)
        self.sizes: dict[float, dict[str, Size]] = {}
        self.norms = nn.ModuleDict()
        for width in reversed(widths):  # each begins with the values of the network's own
            self.add(float(width), 1.0)
        for less, more in itertools.pairwise([*widths, 1.0]):
            if self.same(float(less), more):
                cause = f"method.widths: {less:g} and {more:g} keep the same channels of every layer."
                raise RecipeError(cause, f"Leave one of them out, or set a smaller method.divisor than {divisor}.")

    def add(self, width: float, source: float) -> None:
        """Makes room for a width: norms with the values of those of a larger one."""
        self.sizes[width] = sizes = sizes_at(self.model, self.answers, width, self.divisor, self.input_shape)
        self.norms[_key(width)] = nn.ModuleDict(
            {_key(path): leading(self.norm(path, source), size) for path, size in sizes.items() if size.norm}
        )

    def same(self, width: float, larger: float) -> bool:
        """Whether nothing is narrower at a width than at a larger one."""
        if larger < 1:
            return self.sizes[width] == self.sizes[larger]
        layers = ((self.model.get_submodule(path), size) for path, size in self.sizes[width].items())
        return all(_attributes(layer, size).items() <= vars(layer).items() for layer, size in layers)

    def norm(self, path: str, width: float) -> nn.Module:
        if width == 1:
            return self.model.get_submodule(path)
        return cast(nn.ModuleDict, self.norms[_key(width)])[_key(path)]

    def view(self, model: FlexibleModel, width: float) -> FlexibleModel:
        shared: dict[int, Any] = {id(part): part for part in (*model.parameters(), *model.buffers())}
        narrow = copy.deepcopy(model, shared)
        return self._replaced(narrow, width, lambda path: self.norm(path, width), sliced)

    def cut(self, model: FlexibleModel, width: float) -> FlexibleModel:
        narrow = copy.deepcopy(model)
        return self._replaced(narrow, width, lambda path: copy.deepcopy(self.norm(path, width)), leading)

    def _replaced(
        self,
        model: FlexibleModel,
        width: float,
        norm: Callable[[str], nn.Module],
        layer: Callable[[Any, "Size"], nn.Module],
    ) -> FlexibleModel:
        for path, size in self.sizes[width].items():
            part = norm(path) if size.norm else layer(model.get_submodule(path), size)
            model.set_submodule(path, part)
        model.refresh()
        return model

    def start(self, model: FlexibleModel, fresh: Sequence[str]) -> None:
        """Norms of narrow widths that have no values yet take those of the network's own."""
        random = tuple(fresh)
        for width, sizes in self.sizes.items():
            for path, size in sizes.items():
                own = f"norms.{_key(width)}.{_key(path)}."
                if size.norm and any(name.startswith(own) for name in random):
                    source = leading(self.norm(path, 1.0), size).state_dict()
                    self.norm(path, width).load_state_dict(source)


def rates_of_norms(rates: Mapping[str, float], norms: nn.ModuleDict) -> dict[str, float]:
    """The rates of a network's parameters, and of the norms of its narrow widths: as those of the full width."""
    found = dict(rates)
    for name, _ in norms.named_parameters():
        width, path, parameter = name.split(".")
        same = f"{_path(path)}.{parameter}"
        if same in rates:
            found[f"norms.{width}.{path}.{parameter}"] = rates[same]
    return found


@torch.no_grad()
def settle_norms(model: Widths, loader: Batches, points: Sequence[Point]) -> None:
    """Takes the statistics of the norms that these points use as the plain mean over the loader's batches."""
    used = {point.width for point in points}
    norms = [norm for width in used for norm in model.view(width).modules() if isinstance(norm, BATCH_NORMS)]
    momenta = [norm.momentum for norm in norms]
    was_training = model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # None: a cumulative average
    try:
        for x, _ in loader:
            for _ in model.run(x, points):
                pass
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        model.train(was_training)


# --- which layers there are, and what they are given ------------------------------------------------------------------

BATCH_NORMS = (nn.BatchNorm2d,)
LAYERS = (nn.Conv2d, nn.Linear, *BATCH_NORMS)


class Size(NamedTuple):
    """What a layer of some width has."""

    outputs: int
    inputs: int
    groups: int = 1
    norm: bool = False


def answering_layers(model: FlexibleModel, input_shape: Shape) -> frozenset[str]:
    """The layers that run last before a point answers: they keep all their outputs."""
    bare, last, found = on_meta(model), [""], set()
    for path, layer in _layers(bare):
        if not isinstance(layer, BATCH_NORMS):
            layer.register_forward_hook(lambda *_, path=path: last.__setitem__(0, path))
    for _ in bare.run(example(input_shape, 2, torch.empty, device="meta"), bare.points):
        found.add(last[0])
    if "" in found:
        cause = f"method slim cannot narrow this {type(model.backbone).__name__}: it has no layer that it knows."
        raise RecipeError(cause, "Use a network of convolutions, batch norms and linear layers.")
    return frozenset(found)


def sizes_at(
    model: FlexibleModel, answers: frozenset[str], width: float, divisor: int, input_shape: Shape
) -> dict[str, Size]:
    """Of every layer that is to be narrowed, its size at a width, found by narrowing each as it is called."""
    bare = on_meta(model)
    sizes: dict[str, Size] = {}

    def narrow(path: str, layer: Any, x: Tensor) -> None:
        channels = x.shape[-1 if isinstance(layer, nn.Linear) else 1]
        size = _size(path, layer, channels, width, 0 if path in answers else divisor)
        if sizes.setdefault(path, size) != size:
            raise RecipeError(f"it is called with {size.inputs} and {sizes[path].inputs} channels.", "")
        _resize(layer, size)

    with _named_errors(bare), _NoConcatenation(), torch.no_grad():
        for path, layer in _layers(bare):
            layer.register_forward_pre_hook(lambda layer, x, path=path: narrow(path, layer, x[0]))
        for _ in bare.run(example(input_shape, 2, torch.empty, device="meta"), bare.points):
            pass
    return sizes


def _layers(model: nn.Module) -> list[tuple[str, Any]]:
    return [(path, layer) for path, layer in model.named_modules() if isinstance(layer, LAYERS)]


def _size(path: str, layer: Any, inputs: int, width: float, divisor: int) -> Size:
    """divisor 0: all outputs stay."""
    if isinstance(layer, BATCH_NORMS):
        channels = kept(layer.num_features, width, divisor)
        if channels != inputs:
            raise RecipeError(f"it is given {inputs} channels, and would keep {channels}.", "")
        return Size(channels, channels, norm=True)
    own = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    if divisor and own * width < 0.5:
        raise RecipeError(f"width {width:g} leaves none of its {own} channels.", "Use a larger width.")
    outputs = kept(own, width, divisor) if divisor else own
    if isinstance(layer, nn.Linear):
        return Size(outputs, inputs)
    each = layer.in_channels // layer.groups  # inputs of a group
    if layer.groups == 1:
        return Size(outputs, inputs)
    groups = inputs // each
    if inputs % each or groups * (layer.out_channels // layer.groups) != outputs:
        cause = f"its {layer.groups} groups cannot become {inputs} of {layer.in_channels} channels."
        raise RecipeError(cause, f"Use widths and a divisor that keep a multiple of {each} channels.")
    return Size(outputs, inputs, groups)


class _NoConcatenation(TorchFunctionMode):
    """Refuses to join channels side by side: the first share of the whole is not the first shares of its parts."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.cat, torch.concat, torch.concatenate):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            if args and args[0] and args[0][0].dim() == 4 and dim in (1, -3):
                raise RecipeError("it joins channels side by side (a concatenation).", "")
        return func(*args, **kwargs)


@contextmanager
def _named_errors(model: nn.Module) -> Iterator[None]:
    """Whatever goes wrong in a run is said of the innermost module that was running."""
    running: list[tuple[str, nn.Module]] = []
    for path, part in model.named_modules():
        part.register_forward_pre_hook(lambda part, _, path=path: running.append((path, part)))
        part.register_forward_hook(lambda *_: running.pop() and None)
    try:
        yield
    except Exception as error:
        path, part = running[-1] if running else ("the network", model)
        why = error.cause if isinstance(error, RecipeError) else one_line(error)
        cause = f"method slim cannot narrow {path.removeprefix('backbone.')}, a {type(part).__name__}: {why}"
        cure = (error.cure if isinstance(error, RecipeError) else "") or (
            "Use a network of convolutions, batch norms and linear layers whose channels are added, not joined."
        )
        raise RecipeError(cause, cure) from None


# --- layers with fewer channels ---------------------------------------------------------------------------------------


def leading(layer: L, size: Size) -> L:
    """A copy of a layer with the leading part of its parameters and buffers, and its new sizes as attributes."""
    new = copy.deepcopy(layer)
    _resize(new, size)
    return new


def _resize(layer: Any, size: Size) -> None:
    per_group = size.inputs // size.groups
    for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)):
        if tensor.dim():
            part = tensor.data[: size.outputs, :per_group] if tensor.dim() > 1 else tensor.data[: size.outputs]
            tensor.data = part.clone()
    vars(layer).update(_attributes(layer, size))


def _attributes(layer: nn.Module, size: Size) -> dict[str, int]:
    if isinstance(layer, nn.Linear):
        return {"in_features": size.inputs, "out_features": size.outputs}
    if isinstance(layer, nn.Conv2d):
        return {"in_channels": size.inputs, "out_channels": size.outputs, "groups": size.groups}
    return {"num_features": size.outputs}


def sliced(layer: nn.Module, size: Size) -> nn.Module:
    """A layer of the same kind, whatever that computes, whose weights are the leading part of another's."""
    kind: Any = _sliced_kind(type(layer))  # type: ignore[arg-type]
    view: nn.Module = kind.__new__(kind)
    vars(view).update(vars(layer) | _attributes(layer, size), _parameters={}, _slices=Slices(layer, size))
    return view


class _Sliced:
    """What makes a layer read its weights through `Slices`."""

    _slices: "Slices"

    @property
    def weight(self) -> Tensor:
        return self._slices.weight()

    @property
    def bias(self) -> Tensor | None:
        return self._slices.bias()


@cache
def _sliced_kind(kind: Any) -> type:
    return type(f"Sliced{kind.__name__}", (_Sliced, kind), {})


class Slices:
    """The leading part of a layer's weights: a view where gradients flow, else a contiguous copy, kept while the weight
    stays. Small convolutions take up to a third longer with a strided weight.
    """

    def __init__(self, layer: Any, size: Size) -> None:
        self.layer, self.size = layer, size
        self._copy: tuple[tuple[int, int], Tensor] | None = None

    def weight(self) -> Tensor:
        weight: Tensor = self.layer.weight
        outputs, inputs = self.size.outputs, self.size.inputs // self.size.groups
        if (weight.requires_grad and torch.is_grad_enabled()) or weight.is_inference() or weight.is_meta:
            return weight[:outputs, :inputs]  # (a tensor made in inference mode does not tell when it changes)
        state, known = (weight.data_ptr(), weight._version), self._copy
        if known is None or known[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                part = weight[:outputs, :inputs]
                last = weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)
                form = torch.channels_last if last else torch.contiguous_format
                known = self._copy = (state, part.contiguous(memory_format=form))
        return known[1]

    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.layer.bias
        return None if bias is None else bias[: self.size.outputs]


@cache
def _key(value: float | str) -> str:
    """A width or a path as the name of a module, which may not hold a dot."""
    return value.replace(".", "/") if isinstance(value, str) else f"{value!r}".replace(".", "_")


def _path(key: str) -> str:
    return key.replace("/", ".")
