"""Opening a run or an exported folder for answers: which engines there are, and which of them is the fastest here."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supple import files
from supple.data.preprocess import saved_preprocess
from supple.device import device_here, device_named
from supple.errors import CheckpointError, RecipeError, SaveError, SuppleError, import_cure
from supple.inference.bundle import KINDS, LADDER, MANIFEST, Bundle, Check, is_bundle, open_bundle
from supple.inference.engines import (
    ENGINES,
    MAX_DROP,
    PRECISIONS,
    available,
    check_device,
    must_have_bf16,
    not_installed,
    open_engine,
    precision_here,
)
from supple.inference.inputs import zeros
from supple.inference.predictor import Predictor
from supple.inference.timing import Times, interleave
from supple.ladder import Ladder, Row
from supple.machine import has_bf16, machine
from supple.networks import located
from supple.point import Point
from supple.policy.policy import run_policy
from supple.tasks import TASKS, get_task
from supple.text import did_you_mean, one_line, say

if TYPE_CHECKING:
    from supple.model import FlexibleModel

Path_ = str | os.PathLike[str]
EXPORTS, CHOSEN = "export", "engine.json"
ROUNDS, SECONDS = 30, 5.0  # that choosing an engine takes at most


@dataclass(frozen=True)
class Choice:
    """An engine, what it would open, and in which precision."""

    engine: str
    source: Bundle | None = None  # None: the run itself
    precision: str = "fp32"
    check: Check | None = None  # None: PyTorch in fp32, which everything else is held against
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}" + ("" if self.source is None else f" ({self.source.folder.name})")


def predictor(
    source: "Path_ | FlexibleModel",
    engine: str = "auto",
    threads: int = 2,
    precision: str | None = None,
    max_drop: float = MAX_DROP,
    warm: bool = True,
    progress: bool = False,
    device: str | None = None,
) -> Predictor:
    """A predictor for a run, for a folder that `supple export` wrote, for a network that comes with supple by its name,
    or for a model in hand.

    engine: torch, onnxruntime, openvino; `auto` times all there are and takes the fastest, and remembers it beside the
    run (progress: and says so). precision: fp32, bf16 or int8; None: bf16 and int8 only where they are faster and, with
    the instruction set of this processor, no point has lost more than `max_drop` of its score. Only what was checked on
    an engine is run there. Of a run, folders in RUN/export are found, if they were made from its weights. warm: open
    and time everything now, so that no call has to. device: cpu, cuda, cuda:1, mps, or auto; None: the CPU, or where a
    model in hand is. threads: of the CPU.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
        raise RecipeError(f"threads is {threads!r}.", "Give a whole number from 1 to 256.")
    if precision not in (None, *PRECISIONS):
        raise RecipeError(f'precision is "{precision}".', f"Possible: {', '.join(PRECISIONS)}.")
    stored = isinstance(source, str | os.PathLike)
    where = device_named("cpu" if device is None else device) if stored else device_here(device, source)
    if engine in ENGINES:
        check_device(engine, where)
    if precision == "bf16":
        must_have_bf16(f"{source} in bf16", where)
    if not isinstance(source, str | os.PathLike):
        if engine not in ("auto", "torch") or precision == "int8":
            raise RecipeError("a model object runs only on torch, in fp32 or bf16.", "Export it first: supple.export.")
        return _warmed(of_model(source, threads, precision or "fp32", where), "the model", warm)
    source = located(source)
    path = Path(source)
    if engine != "auto" and engine not in ENGINES:
        raise RecipeError(f'there is no engine "{engine}".', did_you_mean(str(engine), ["auto", *ENGINES]))
    choices = choices_for(path, where)
    if engine != "auto":
        choices = named(path, choices, engine)
    choices = [c for c in choices if precision in (None, c.precision)]
    if precision is None and not is_bundle(path):
        choices = [c for c in choices if within(c, max_drop)]
    if not choices:
        wanted = f"{engine}{'' if precision is None else f' in {precision}'}"
        raise RecipeError(f"{path} has nothing for {wanted} that answers at every point.", _cure(precision))
    if engine != "auto" and precision is None:
        choices = [c for c in choices if c.precision == "fp32"] or choices
    chosen = choices[0] if len(choices) == 1 else fastest(source, choices, threads, progress)
    remark(chosen)
    return _warmed(opened(source, chosen, threads), f"{path} on {chosen}", warm)


def _warmed(made: Predictor, what: str, warm: bool) -> Predictor:
    if warm:
        try:
            made.warm()
        except SuppleError:
            raise
        except Exception as error:  # whatever a runtime says of graphs that are not what the manifest tells
            cause = f"{what} does not run: {one_line(error)}"
            raise CheckpointError(cause, "Export the run again.") from error
    return made


def choices_for(path: Path, device: str = "cpu") -> list[Choice]:
    """Every engine that is installed and runs on the device, with what it can open here and was checked with."""
    able, refusals = [], []
    for choice in _installed(path, device):
        try:
            check_device(choice.engine, device)
            able.append(replace(choice, device=device))
        except RecipeError as error:
            refusals.append(error)
    if refusals and not able:
        raise refusals[0]
    return able


def _installed(path: Path, device: str) -> list[Choice]:
    if is_bundle(path):
        bundle = open_bundle(path)
        if bundle.kind == "torch-export":
            raise RecipeError(
                f"{path} holds archives of torch.export, which supple writes for other programs but does not open: "
                "reading one can run code.",
                "Use the run itself, or export it with --to onnx.",
            )
        if not available(bundle.kind):
            raise RecipeError(f"no engine for {bundle.kind} is installed.", "pip install 'supple[export]'")
        return checked(bundle)
    if path.is_file():
        raise CheckpointError(f"{path} is a file, not a run or an exported folder.", _cure_for_file(path))
    if not path.is_dir():
        raise CheckpointError(f"there is no folder {path}.", "Give one that supple train or supple export wrote.")
    run = [Choice("torch")] if available("run") else []
    scored = scored_in_bf16(path, device) if run else None
    run += [Choice("torch", None, "bf16", scored)] if scored is not None else []
    return run + [choice for bundle in exports_of(path) for choice in checked(bundle)]


def _cure_for_file(path: Path) -> str:
    if is_bundle(path.parent):
        return f"Give the folder that it lies in: {path.parent}."
    if path.suffix in KINDS.values():
        return "Give a folder that supple export wrote: a graph alone does not say how pictures are prepared."
    start = f"Weights are where a training starts: supple train PICTURES --network NAME --weights {path}."
    return f"Give a folder that supple train or supple export wrote. {start}"


def checked(bundle: Bundle) -> list[Choice]:
    """The installed engines that an exported folder was checked on, in the precision that it runs in here."""
    precision = precision_here(bundle.precision)
    seen = {name: bundle.check(name, precision) for name in available(bundle.kind)}
    return [
        Choice(name, bundle, precision, check)
        for name, check in seen.items()
        if check and bundle.after(check).graphs.points
    ]


def scored_in_bf16(run: Path, device: str = "cpu") -> Check | None:
    """What PyTorch loses in bf16 on this instruction set or GPU, as `supple evaluate --precision bf16` found; None: it
    has no bf16, or some point was not scored."""
    try:
        if not has_bf16(device):
            return None
        manifest = _manifest(run)
        document = files.read_json(run / LADDER, "")
        points = [*manifest["points"], *manifest["settled"]]
        rows = Ladder.from_json(document).where(engine="torch", precision="bf16").on(machine(device))
        own = document["weights"] == manifest["files"]["model.safetensors"]
    except (OSError, ValueError, LookupError, TypeError, CheckpointError):
        return None  # what is wrong with a run is said when it is loaded
    lost = {row.point: row.lost for row in rows if row.score is not None and row.lost is not None}
    error = {row.point: row.lost_error or 0.0 for row in rows}
    whole = own and set(points) <= set(lost)
    return Check("torch", "bf16", machine(device), lost=lost, error=error) if whole else None


def exports_of(run: Path) -> Iterator[Bundle]:
    """The exported folders of a run that were made from its weights; one that is damaged is named and passed over."""
    manifest, weights = _manifest(run), _weights(run)
    for folder in sorted((run / EXPORTS).glob("*/")) if (run / EXPORTS).is_dir() else ():
        if not folder.name.startswith(".") and is_bundle(folder):  # such a one was interrupted
            try:
                bundle = open_bundle(folder)
            except CheckpointError as error:
                say(f"{error.cause} It is ignored. {error.cure}")
                continue
            if bundle.checkpoint == weights:
                yield replace(bundle, policy=run_policy(run, manifest))


def _manifest(run: Path) -> dict[str, Any]:
    """Empty where it cannot be read: what is wrong with a run is said when it is loaded."""
    try:
        found = files.read_json(run / MANIFEST, "")
    except CheckpointError:
        return {}
    return found if isinstance(found.get("files"), dict) else {}


def _weights(run: Path) -> str | None:
    found: str | None = _manifest(run).get("files", {}).get("model.safetensors")
    return found


def within(choice: Choice, max_drop: float) -> bool:
    """Whether every point of the run is there and none has, with this instruction set, clearly lost too much."""
    if choice.check is None:
        return True
    whole = not (choice.source and (choice.source.asked or choice.source.missing())) and not choice.check.left_out
    return whole and choice.check.holds_here(choice.device) and not choice.check.losing(max_drop)


def remark(choice: Choice) -> None:
    """Says where a folder is not what it was where it was made."""
    if choice.source is not None and choice.source.precision != choice.precision:
        say(f"{choice.source.folder} is in bf16, which this processor lacks: it runs in {choice.precision}.")
    if choice.check is not None and not choice.check.holds_here(choice.device):
        say(f"the scores of {choice} are of another instruction set ({choice.check.machine}).")


def _cure(precision: str | None) -> str:
    if precision == "bf16":
        return "Score it: supple evaluate RUN --precision bf16; or supple export RUN --to openvino --bf16."
    return f"Export it: supple export RUN{' --int8' if precision == 'int8' else ''}. See docs/engines.md."


def named(path: Path, choices: list[Choice], engine: str) -> list[Choice]:
    """The choices of one engine; if there are none, why."""
    found = [c for c in choices if c.engine == engine]
    if found:
        return found
    _, _, kinds = ENGINES[engine]
    if not any(engine in available(kind) for kind in kinds):
        raise not_installed(engine)
    there = [open_bundle(path)] if is_bundle(path) else exports_of(path)
    for bundle in there:
        if bundle.kind in kinds and bundle.check(engine, precision_here(bundle.precision)) is None:
            raise unchecked(bundle, engine)
    cure = f"Export the run: supple export RUN --to {kinds[0]}." if kinds[0] != "run" else "Give the run itself."
    raise RecipeError(f"{path} is not for the engine {engine}.", cure)


def fastest(source: Path_, choices: list[Choice], threads: int, progress: bool) -> Choice:
    """The choice whose full model takes least time for one sample; remembered beside the run or folder."""
    path = Path(source)
    names = {str(choice): choice for choice in choices}
    weights = next((c.source.checkpoint for c in choices if c.source is not None), _weights(path))
    key = {"machine": machine(choices[0].device), "threads": threads, "weights": weights, "choices": sorted(names)}
    file = path / CHOSEN
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if {name: known[name] for name in key} == key:
            return names[known["chosen"]]
    except (OSError, ValueError, LookupError, TypeError):
        pass  # none yet, or of other circumstances: measured now
    made = {name: opened(source, choice, threads) for name, choice in names.items()}
    x = {name: zeros(one.shape, 1) for name, one in made.items()}
    largest = {name: str(one.points[-1]) for name, one in made.items()}  # full, or the largest that was exported
    calls = {name: lambda name=name: made[name].run_point(largest[name], x[name]) for name in made}
    times = interleave(calls, ROUNDS, SECONDS, {name: choice.engine for name, choice in names.items()})
    for one in made.values():
        one.close()
    ms = {name: times[name].p50_ms for name in sorted(times, key=lambda name: times[name].p50_ms)}
    chosen, alone = _chosen({name: (choice.precision, times[name]) for name, choice in names.items()})
    if progress:
        listed = ", ".join(f"{name} {value:.3g} ms" for name, value in ms.items())
        why = "the fastest here" if alone else "none is faster outside the spread"
        say(f"engine: {chosen}, {why} ({listed}); remembered in {file}")
    try:
        files.write(file, json.dumps({**key, "chosen": chosen, "ms": ms}, indent=1))
    except SaveError as error:
        say(f"{error.cause} It will be measured again.")
    return names[chosen]


def _chosen(timed: dict[str, tuple[str, Times]]) -> tuple[str, bool]:
    """Of those whose time cannot be told from the shortest, the one in the fullest precision; and whether the shortest
    stands alone."""
    rows = {name: Row(name, p50_ms=times.p50_ms, iqr_ms=times.iqr_ms) for name, (_, times) in timed.items()}
    shortest = min(timed, key=lambda name: timed[name][1].p50_ms)
    near = [name for name in timed if not rows[shortest].is_cheaper(rows[name], "p50_ms")]
    found = min(near, key=lambda name: (PRECISIONS.index(timed[name][0]), timed[name][1].p50_ms))
    return found, len(near) == 1


def opened(source: Path_, choice: Choice, threads: int) -> Predictor:
    if choice.source is None:
        from supple.checkpoint import model_of

        return of_model(model_of(source), threads, choice.precision, choice.device)
    return of_bundle(choice.source, choice.engine, threads, choice.device)


def unchecked(bundle: Bundle, engine: str) -> RecipeError:
    cause = f"{bundle.folder} was not checked on {engine}, which was not installed where it was exported."
    return RecipeError(cause, f"Export again where {engine} is installed.")


def of_bundle(bundle: Bundle, engine: str, threads: int, device: str = "cpu") -> Predictor:
    """An exported folder on an engine that it was checked on, without the points that lost too much there."""
    precision = precision_here(bundle.precision)
    check = bundle.check(engine, precision)
    if check is None:
        raise unchecked(bundle, engine)
    bundle = bundle.after(check)
    if bundle.task not in TASKS:
        raise CheckpointError(f"{bundle.folder} answers {bundle.task}, which is not a known task.", import_cure())
    return Predictor(
        open_engine(engine, bundle, threads, precision, device),
        bundle.graphs,
        task=get_task(bundle.task),
        classes=bundle.classes,
        preprocess=None if bundle.preprocess is None else saved_preprocess(bundle.task, bundle.preprocess),
        ladder=bundle.ladder.where(engine=engine, precision=precision).on(machine(device)),
        shape=bundle.input_shape,
        policy=bundle.policy,
    )


def of_model(
    model: "FlexibleModel", threads: int, precision: str = "fp32", device: str = "cpu", points: Iterable[Point] = ()
) -> Predictor:
    """PyTorch itself. points: that it answers at beside its own."""
    from supple.cost import profile_others
    from supple.inference.engines.torch import graphs_of

    graphs = graphs_of(model, points)
    engine = open_engine("torch", model, threads, precision, device)
    assert model.input_shape is not None, "a model to predict with knows the shape of its input"
    own = model.ladder.where(engine="torch", precision=precision).on(machine(device))
    return Predictor(
        engine,
        graphs,
        task=get_task(model.task),
        classes=model.classes,
        preprocess=model.preprocess,
        ladder=Ladder([*own, *profile_others(model, own, graphs.points)]),
        shape=model.input_shape,
        policy=model.policy,
        check=model.check,
    )
