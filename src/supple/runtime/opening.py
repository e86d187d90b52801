"""Opening a run or an exported folder for answers: which engines there are, and which of them is the fastest here."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supple import files
from supple.errors import CheckpointError, RecipeError, SaveError, SuppleError
from supple.ladder import Ladder
from supple.machine import machine
from supple.runtime.answers import Rule
from supple.runtime.bundle import MANIFEST, Bundle, is_bundle, open_bundle
from supple.runtime.clock import REST_S, interleave
from supple.runtime.engine import ENGINES, available, open_engine
from supple.runtime.inputs import zeros
from supple.runtime.predictor import Predictor
from supple.text import did_you_mean, say

EXPORTS, CHOSEN = "export", "engine.json"
ROUNDS, SECONDS = 30, 5.0  # that choosing an engine takes at most


@dataclass(frozen=True)
class Choice:
    """An engine and what it would open."""

    engine: str
    source: Bundle | None  # None: the run itself

    @property
    def precision(self) -> str:
        return "fp32" if self.source is None else self.source.precision

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}" + ("" if self.source is None else f" ({self.source.folder.name})")


def predictor(
    path: str | Path, engine: str = "auto", threads: int = 2, precision: str | None = None, most_lost: float = 0.01
) -> Predictor:
    """A predictor for a run, or for a folder that `supple export` wrote.

    engine: torch, onnxruntime, openvino; `auto` times all there are and takes the fastest, remembers it beside the run
    and says so. precision: fp32 or int8; None: int8 only where it is faster and no point has lost more than `most_lost`
    of its score on held-out images. Of a run, folders in RUN/export are found, if they were made from its weights.
    """
    path = Path(path)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
        raise RecipeError(f"threads is {threads!r}.", "Give a whole number from 1 to 256.")
    if precision not in (None, "fp32", "int8"):
        raise RecipeError(f'precision is "{precision}".', "Possible: fp32, int8.")
    if engine != "auto" and engine not in ENGINES:
        raise RecipeError(f'there is no engine "{engine}".', did_you_mean(str(engine), ["auto", *ENGINES]))
    choices = choices_for(path)
    if engine != "auto":
        choices = _named(path, choices, engine)
    choices = [c for c in choices if precision in (None, c.precision)]
    if precision is None and not is_bundle(path):
        choices = [c for c in choices if within(c, most_lost)]
    if not choices:
        wanted = f"{engine}{'' if precision is None else f' in {precision}'}"
        cure = f"Export it: supple export RUN{' --int8' if precision == 'int8' else ''}. See docs/engines.md."
        raise RecipeError(f"{path} has nothing for {wanted} that answers at every point.", cure)
    if engine != "auto" and precision is None:
        choices = [c for c in choices if c.precision == "fp32"] or choices
    chosen = choices[0] if len(choices) == 1 else fastest(path, choices, threads)
    made = opened(path, chosen, threads)
    try:
        made.warm()
    except SuppleError:
        raise
    except Exception as error:  # whatever a runtime says of graphs that are not what the manifest tells
        cause = f"{path} does not run on {chosen}: {' '.join(str(error).split())[:200]}"
        raise CheckpointError(cause, "Export the run again.") from error
    return made


def choices_for(path: Path) -> list[Choice]:
    """Every engine that is installed, with what it can open here."""
    if is_bundle(path):
        bundle = open_bundle(path)
        if bundle.kind == "torch-export":
            raise RecipeError(
                f"{path} holds archives of torch.export, which supple writes for other programs but does not open: "
                "reading one can run code.",
                "Use the run itself, or export it with --to onnx.",
            )
        found = [Choice(name, bundle) for name in available(bundle.kind)]
        if not found:
            raise RecipeError(f"no engine for {bundle.kind} is installed.", "pip install 'supple[export]'")
        return found
    if not path.is_dir():
        raise CheckpointError(f"there is no folder {path}.", "Give one that supple train or supple export wrote.")
    run = [Choice("torch", None)] if available("run") else []
    return run + [Choice(name, bundle) for bundle in exports_of(path) for name in available(bundle.kind)]


def exports_of(run: Path) -> Iterator[Bundle]:
    """The exported folders of a run that were made from its weights; one that is damaged is named and passed over."""
    weights = _weights(run)
    for folder in sorted((run / EXPORTS).glob("*/")) if (run / EXPORTS).is_dir() else ():
        if not folder.name.startswith(".") and is_bundle(folder):  # such a one was interrupted
            try:
                bundle = open_bundle(folder)
            except CheckpointError as error:
                say(f"{error.cause} It is passed over; remove {folder}, and export again.")
                continue
            if bundle.checkpoint == weights:
                yield bundle


def _weights(run: Path) -> str | None:
    try:
        digest = json.loads((run / MANIFEST).read_text(encoding="utf-8"))["files"]["model.safetensors"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return str(digest)


def within(choice: Choice, most_lost: float) -> bool:
    """Whether every point of the run is there and has lost no more than allowed."""
    if choice.source is None:
        return True
    whole = not choice.source.asked and not choice.source.left_out
    return whole and max(choice.source.lost.values(), default=0.0) <= most_lost


def _named(path: Path, choices: list[Choice], engine: str) -> list[Choice]:
    found = [c for c in choices if c.engine == engine]
    if found:
        return found
    _, package, kinds = ENGINES[engine]
    if not any(engine in available(kind) for kind in kinds):
        extra = "" if package == "torch" else "[export]"
        raise RecipeError(f"the engine {engine} is not installed.", f"Install it: pip install 'supple{extra}'.")
    cure = f"Export the run: supple export RUN --to {kinds[0]}." if kinds[0] != "run" else "Give the run itself."
    raise RecipeError(f"{path} is not for the engine {engine}.", cure)


def fastest(path: Path, choices: list[Choice], threads: int) -> Choice:
    """The choice whose full model takes least time for one sample; remembered beside the run or folder."""
    names = {str(choice): choice for choice in choices}
    key = {"machine": machine(), "threads": threads, "weights": _of(choices), "choices": sorted(names)}
    file = path / CHOSEN
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if {name: known[name] for name in key} == key:
            return names[known["chosen"]]
    except (OSError, ValueError, LookupError, TypeError):
        pass  # none yet, or of other circumstances: measured now
    made = {name: opened(path, choice, threads) for name, choice in names.items()}
    x = {name: zeros(one.shape, 1) for name, one in made.items()}
    largest = {name: str(one.points[-1]) for name, one in made.items()}  # full, or the largest that was exported
    calls = {name: lambda name=name: made[name].run_point(largest[name], x[name]) for name in made}
    ms = {name: times.p50_ms for name, times in interleave(calls, ROUNDS, SECONDS, REST_S).items()}
    for one in made.values():
        one.close()
    chosen = min(ms, key=lambda name: ms[name])
    said = ", ".join(f"{name} {ms[name]:.3g} ms" for name in sorted(ms, key=lambda name: ms[name]))
    say(f"engine: {chosen}, the fastest here ({said}); remembered in {file}")
    try:
        files.write(file, json.dumps({**key, "chosen": chosen, "ms": ms}, indent=1))
    except SaveError as error:
        say(f"{error.cause} It will be measured again.")
    return names[chosen]


def _of(choices: list[Choice]) -> str:
    return next((c.source.checkpoint for c in choices if c.source is not None), "")


def opened(path: Path, choice: Choice, threads: int) -> Predictor:
    return of_run(path, threads) if choice.source is None else of_bundle(choice.source, choice.engine, threads)


def of_bundle(bundle: Bundle, engine: str, threads: int) -> Predictor:
    return Predictor(
        open_engine(engine, bundle, threads),
        points=bundle.points,
        stages=bundle.chain,
        roles=bundle.roles,
        classes=bundle.classes,
        preprocess=_preprocess(bundle),
        ladder=bundle.ladder,
        shape=bundle.input_shape,
        task=bundle.task,
        rule=Rule.from_json(bundle.policy),
    )


def _preprocess(bundle: Bundle) -> Any:
    """Of images and their classes without torch."""
    if bundle.preprocess is None:
        return None
    if bundle.task == "classes":
        from supple.data.prepare import Preprocess

        return Preprocess.from_json(bundle.preprocess)
    from supple.data.sets import DATASETS

    entry = next((entry for entry in DATASETS.values() if entry.task == bundle.task), None)
    if entry is None:
        raise CheckpointError(f"{bundle.folder} answers an unknown task, {bundle.task}.", "Update supple.")
    return entry.family.reopen(bundle.preprocess)


def of_run(run: Path, threads: int) -> Predictor:
    """PyTorch itself."""
    from supple.checkpoint import load, load_policy
    from supple.cost import profile
    from supple.runtime.torch_engine import answering, is_chain

    model = load(run)
    if model.task == "boxes":
        raise RecipeError(f"{run} finds objects: no engine runs it by stages.", "Use supple predict, or supple.load.")
    policy = load_policy(run, model)
    chain = answering(model)
    assert model.input_shape is not None
    known = {row.point for row in model.ladder}
    ladder = Ladder([*model.ladder, *(row for row in profile(model) if row.point not in known)])
    return Predictor(
        open_engine("torch", model, threads),
        points=(*model.settled, *model.points),
        stages=[None if point is None else str(point) for point in chain] if is_chain(chain) else [],
        classes=model.classes,
        preprocess=model.preprocess,
        ladder=ladder,
        shape=model.input_shape,
        task=model.task,
        rule=None if policy is None else Rule.from_json(policy.to_json()),
    )
