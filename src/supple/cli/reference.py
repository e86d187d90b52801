"""Every key of a recipe, from the signatures and models that recipes are checked against: docs/reference.md."""

import ast
import inspect
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from supple.recipe import Copycat, Data, Train, keywords

TITLE = """# Every key of a recipe

Written by `supple list --keys > docs/reference.md` from the source: do not edit it. What the sections are for:
[training.md](training.md). A key is changed on the command line as `train.epochs=3`, and in a recipe as
`train: {epochs: 3}`. In Python, the keys of `loss` and `train` are arguments of `supple.fit`."""


REQUIRED = "required"
LIMITS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))  # as pydantic names them


class Key(NamedTuple):
    key: str
    type: str
    default: str  # as YAML, or REQUIRED
    about: str  # the comment beside it in the source


class Entry(NamedTuple):
    name: str  # what the section's `name` says; of keys that all share, a heading
    about: str
    keys: list[Key]


def reference() -> dict[str, list[Entry]]:
    """The keys of every section; of those with a `name`, by name."""
    from supple.backbones import BACKBONES
    from supple.losses import OBJECTIVES
    from supple.methods import METHODS
    from supple.methods.branches import BRANCHES
    from supple.training.schedule import SCHEDULES

    def named(section: str, registry: Mapping[str, Callable[..., Any]]) -> list[Entry]:
        return [Entry(name, summary(made), _of_function(section, made)) for name, made in registry.items()]

    return {
        "data": _data(),
        "backbone": named("backbone", BACKBONES),
        "method": named("method", METHODS),
        "method.branch": named("method.branch", BRANCHES),
        "loss": named("loss", OBJECTIVES),
        "train": [Entry("", "", _of_model("train", Train))],
        "train.schedule": named("train.schedule", SCHEDULES),
        "copycat": [Entry("", summary(Copycat), _of_model("copycat", Copycat))],
    }


def page() -> str:
    """All of it as Markdown."""
    lines = [TITLE, ""]
    for section, entries in reference().items():
        lines += [f"## {section}", ""]
        for entry in entries:
            lines += [f"### {entry.name}", ""] if entry.name else []
            lines += [entry.about, ""] if entry.about else []
            if entry.keys:
                rows = ((f"`{key.key}`", key.type, _code(key.default), key.about) for key in entry.keys)
                table = [("key", "type", "default", "meaning"), ("---",) * 4, *rows]
                lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
                lines += [""]
            elif entry.name:
                lines += ["No keys of its own.", ""]
    return "\n".join(lines).rstrip()


def _code(default: str) -> str:
    return default if default == REQUIRED else f"`{default}`"


def summary(target: Any) -> str:
    """The first sentence of what something says of itself."""
    text = " ".join((inspect.getdoc(target) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[^.]\.)(?=\s)", text)[0]


def _data() -> list[Entry]:
    """What all sets take, what those of a family do, and each set's own settings."""
    from supple.data.registry import DATASETS

    entries = [Entry("", "Of all data sets:", _of_model("data", Data))]
    families: dict[int, list[str]] = {}
    for name, entry in DATASETS.items():
        families.setdefault(id(entry.family), []).append(name)
    for names in families.values():
        shared = _of_function("data", DATASETS[names[0]].family.load)
        entries.append(Entry("", f"Of {', '.join(names)}:", shared))
        about = {key.key.removeprefix("data."): key.about for key in shared}
        for name in names:
            entry, own = DATASETS[name], _of_function("data", DATASETS[name].read)
            known, settings = {key.key for key in own}, entry.settings()
            usual = {key: settings[key] for key in entry.usual if f"data.{key}" not in known}
            entries.append(Entry(name, summary(entry.read), own + _keys("data", usual, about)))
    return entries


def _of_function(section: str, target: Callable[..., Any]) -> list[Key]:
    return _keys(section, keywords(target), comments(target))


def _of_model(section: str, model: type[BaseModel]) -> list[Key]:
    settings = {
        name: (_annotation(field), ... if field.is_required() else field.default)
        for name, field in model.model_fields.items()
    }
    return _keys(section, settings, comments(model))


def _annotation(field: FieldInfo) -> Any:
    """The type of a field as it is written: a mapping that is read from a name may be one."""
    if any(isinstance(part, BeforeValidator) for part in field.metadata):
        return str | field.annotation
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _keys(section: str, settings: Mapping[str, tuple[Any, Any]], about: Mapping[str, str]) -> list[Key]:
    return [
        Key(
            f"{section}.{name}",
            type_name(kind),
            REQUIRED if default is ... else as_yaml(default),
            about.get(name, ""),
        )
        for name, (kind, default) in settings.items()
    ]


# --- comments, types and values ---------------------------------------------------------------------------------------


def comments(target: Any) -> dict[str, str]:
    """The comment beside each field of a model, or beside each argument of a function or class."""
    while isinstance(target, partial):
        target = target.func
    model = inspect.isclass(target) and issubclass(target, BaseModel)
    try:
        source = textwrap.dedent(inspect.getsource(target if model or not inspect.isclass(target) else target.__init__))
    except (OSError, TypeError):  # made while running
        return {}
    beside = {
        token.start[0]: _text(token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    last = [*_last_lines(ast.parse(source).body[0])]
    lines = [line for _, line in last]
    return {name: beside[line] for name, line in last if beside.get(line) and lines.count(line) == 1}


def _last_lines(tree: ast.stmt) -> Iterable[tuple[str, int]]:
    """Where each field or argument ends."""
    if isinstance(tree, ast.ClassDef):
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node.end_lineno or 0
    elif isinstance(tree, ast.FunctionDef):
        for argument, default in zip(tree.args.kwonlyargs, tree.args.kw_defaults):
            yield argument.arg, (argument if default is None else default).end_lineno or 0


def _text(comment: str) -> str:
    """What a comment says to people: linters have remarks of their own."""
    parts = re.split(r"(?:^|\s+)#\s*", comment)
    text = "; ".join(part for part in parts if part and not part.startswith(("noqa", "type:")))
    return re.sub(r"\bNone\b", "null", text)  # as a recipe has it


def type_name(kind: Any) -> str:
    """A type as the writer of a recipe sees it: `int >= 1`, `float or null`, `list of int`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        given = [limit for part in inner[1:] for limit in (part.metadata if isinstance(part, FieldInfo) else [part])]
        ends = [f"{sign} {getattr(limit, name):g}" for limit in given for name, sign in LIMITS if hasattr(limit, name)]
        whole, null, _ = type_name(inner[0]).partition(" or null")
        return " ".join((whole, " and ".join(ends))).strip() + null
    if origin is Literal:
        return ", ".join(map(as_yaml, inner))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_name(one) for one in inner))
    if origin in (tuple, list):
        count = "" if len(inner) < 2 or inner[-1] is ... else f"{len(inner)} "
        return f"list of {count}{type_name(inner[0])}" if inner else "list"
    if origin is dict or kind is dict:
        return "mapping"
    return "null" if kind is NoneType else str(getattr(kind, "__name__", kind))


def as_yaml(value: Any) -> str:
    """A value as a recipe has it."""
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {as_yaml(one)}' for key, one in value.items())}}}"
    return json.dumps(value)
