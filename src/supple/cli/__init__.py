"""The command line: `supple VERB ...`. One file per verb; torch is imported only when a verb runs."""

import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module

from supple.errors import IMPORTED, SuppleError
from supple.machine import own_process
from supple.text import did_you_mean, one_line, say

GROUPS = {
    "Try it": {
        "demo": "the network that comes with supple: its curve on this machine, and pictures at three deadlines",
        "doctor": "what this machine and installation can do",
        "list": "methods, backbones, data sets, recipes",
    },
    "Make a flexible model": {
        "profile": "MACs and parameters of every point, before training",
        "train": "train pictures or a recipe into a run folder; resume; settle more points",
        "search": "the best of all points that a model can run, within budgets of measured time",
        "extract": "one point as an ordinary, smaller network",
        "merge": "one model of layers from several runs",
        "prune": "a transformer without the dimensions that matter least",
    },
    "Know what it costs and scores": {
        "evaluate": "score of every point on the test images",
        "bench": "measured latency of every point on this machine",
        "analyse": "what layers do: positions, contributions, dependencies, skips",
        "report": "one self-contained page with curves and tables",
        "reproduce": "the papers' claims, decided: declared experiments, run and judged",
    },
    "Use it": {
        "calibrate": "thresholds to stop when sure, for a mean budget or an accuracy",
        "export": "every point as graphs for ONNX Runtime or OpenVINO, in fp32, bf16 or int8, checked",
        "predict": "answers for files at a point, within a deadline or a budget, or when sure",
        "serve": "answers over HTTP, within deadlines under load; a page to try it",
        "cluster": "layers on several nodes, any of which may die; start, add, run, status, chaos, stop, simulate",
    },
}
COMPLETE = "_SUPPLE_COMPLETE"  # the variable by which a shell asks for completions, as typer names it
SHELLS = ("bash", "zsh", "fish", "powershell")
VERBS = {verb: text for group in GROUPS.values() for verb, text in group.items()}


def overview() -> str:
    lines = ["supple: one vision or audio model for every budget", "", "Usage: supple VERB ... (each has --help)", ""]
    for group, verbs in GROUPS.items():
        lines += [group, *(f"  {verb:<10}{text}" for verb, text in verbs.items()), ""]
    lines += [
        "Everywhere: --json prints one JSON document, --debug shows a traceback, --import MODULE runs a module of"
    ]
    lines += ["yours first (it may register a backbone). Two commands to paste:"]
    lines += ["  supple demo", "  supple profile recipes/ipkd_ta/msdnet_cifar100_tam.yaml"]
    return "\n".join(lines)


def run() -> int:
    """The command line as a process of its own."""
    own_process()
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 1 (failure), 2 (the user's mistake), 130 (Ctrl-C)."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):  # a name of a file may be any bytes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    given = [*(sys.argv[1:] if arguments is None else arguments)]  # not list(): the verb's module has that name here
    debug = "--debug" in given
    given = [word for word in given if word != "--debug"]
    modules = _taken(given, "--import")
    IMPORTED.clear()
    try:
        for module in modules:
            _import(module)
            IMPORTED.append(module)
        status = _run(given)
        sys.stdout.flush()  # whoever reads it may be gone
        return status
    except SuppleError as error:
        if debug:
            raise
        say(error.cause if error.status == 130 else f"error: {error.cause}")
        say(_with_imports(error.cure or "See supple --help."))
        return error.status
    except KeyboardInterrupt:
        if debug:
            raise
        say("stopped.")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        say("\n".join(_unforeseen(error)))
        return 1


def _with_imports(cure: str) -> str:
    """Commands in it name the modules that this one named."""
    words = "".join(f" --import {module}" for module in IMPORTED)
    return re.sub(rf"\bsupple (?=({'|'.join(VERBS)})\b)", f"supple{words} ", cure) if words else cure


def _unforeseen(error: Exception) -> tuple[str, str]:
    """What to say of an error that no part of supple has named, and what to do."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and not missing.startswith("supple"):
        cure = "Install supple with its dependencies: pip install supple. (Exported folders run with fewer.)"
        return f"error: the package {missing} is not installed.", cure
    cause = f"error: {one_line(error, 300, named=True)}"
    return cause, "This should not happen. Run the command again with --debug to see where."


def _taken(given: list[str], option: str) -> list[str]:
    """The values of an option that every verb has, taken out of the words given."""
    values = []
    while option in given[:-1]:
        place = given.index(option)
        values.append(given[place + 1])
        del given[place : place + 2]
    return values


def _import(module: str) -> None:
    """Runs a module of the user's that registers a backbone, a method or a data set."""
    sys.path.insert(0, os.getcwd())
    try:
        import_module(module)
    except SuppleError as error:
        raise SuppleError(f"--import {module}: {error.cause}", error.cure) from None
    except Exception as error:
        cause = f"--import {module} failed: {one_line(error, 300, named=True)}"
        raise SuppleError(cause, "Name a Python module as import does, found from this folder.") from None
    finally:
        sys.path.remove(os.getcwd())


def _completion(given: list[str]) -> int:
    """What a shell needs to complete words: `--install-completion`, `--show-completion [SHELL]`, or its question."""
    from supple.cli.app import app

    if given[:1] == ["--show-completion"] and len(given) > 1:
        if given[1] not in SHELLS:
            raise SuppleError(f'there is no completion for the shell "{given[1]}".', f"Possible: {', '.join(SHELLS)}.")
        os.environ[COMPLETE], given = f"source_{given[1]}", []
    try:
        result = app(given, prog_name="supple", standalone_mode=False)
    except SystemExit as done:
        result = done.code
    finally:
        os.environ.pop(COMPLETE, None)
    return result if isinstance(result, int) else 0


def _as_change(option: str, given: list[str]) -> str:
    """An option that there is not as the change to a recipe that it means: `--epochs 10` is `train.epochs=10`."""
    if given[0] != "train":
        return ""
    from supple.recipe import Data, Train

    key, words = option.strip("-").replace("-", "_"), " ".join(given).replace("=", " ").split()
    section = next((name for name, model in (("train", Train), ("data", Data)) if key in model.model_fields), None)
    value = next(iter(words[words.index(option) + 1 :]), "...") if option in words else "..."
    return "" if section is None else f"{section}.{key}={value}"


def _run(given: list[str]) -> int:
    if COMPLETE in os.environ or given[:1] in (["--install-completion"], ["--show-completion"]):
        return _completion(given)
    if not given or given[0] in ("--help", "-h", "help"):
        print(overview())
        return 0
    if given[0] in ("--version", "version"):
        from supple import __version__

        print(f"supple {__version__}")
        return 0
    if given[0] not in VERBS:
        raise SuppleError(f'there is no verb "{given[0]}".', did_you_mean(given[0], VERBS))
    import typer

    from supple.cli.app import app

    try:
        result = app(given, prog_name="supple", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # A usage error. Its class is click's in older versions of typer, and typer's own copy of click in newer ones.
        cause, change = " ".join(error.format_message().split()), _as_change(getattr(error, "option_name", ""), given)
        if change:
            cause, change = cause.partition(" (")[0], f"Settings of a recipe are written without dashes: {change}. "
        raise SuppleError(f"{cause.rstrip('.')}.", f"{change}See supple {given[0]} --help.") from None
    if result == 130:  # typer's word for Ctrl-C
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0
