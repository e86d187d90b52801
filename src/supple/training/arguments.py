"""Settings of classes and functions that others wrote: their keyword arguments, by name and checked."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from supple.errors import RecipeError
from supple.recipe import STRICT
from supple.text import did_you_mean

PLAIN: dict[Any, type] = {"int": int, "float": float, "bool": bool, "str": str}  # annotations that are text


def name_and_rest(given: str | Mapping[str, Any], default: str) -> tuple[str, dict[str, Any]]:
    """`adamw` or `{name: adamw, eps: 1e-6}` as a name and arguments; arguments alone are those of the default."""
    rest = {"name": given} if isinstance(given, str) else dict(given)
    return str(rest.pop("name", default)), rest


def settable(target: Callable[..., Any], hidden: Collection[str]) -> dict[str, inspect.Parameter]:
    """The arguments that a recipe may set."""
    parameters = inspect.signature(target).parameters
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in parameters.items() if one.kind in kinds and name not in hidden}


def checked_arguments(
    key: str, name: str, given: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], remark: str = ""
) -> dict[str, Any]:
    """The arguments given, and the defaults of the others written out, save None and False, which switch nothing on.

    What is unknown, missing or of another type is refused; what the values may be is for the target to say.
    """
    takes = f"{name} takes {', '.join(parameters) or 'no arguments'}.{remark}"
    for one in given:
        if one not in parameters:
            guess = did_you_mean(str(one), parameters) if parameters else ""
            cure = f"{guess} {takes}" if guess.startswith("Did") else takes
            raise RecipeError(f'unknown key "{key}.{one}".', cure)
    for one, parameter in parameters.items():
        if parameter.default is parameter.empty and one not in given:
            raise RecipeError(f"{key}.{one} is missing: {name} needs it.", f"Add it. {takes}")
    fields: dict[str, Any] = {one: (_type(parameter), parameter.default) for one, parameter in parameters.items()}
    try:
        values = create_model("Arguments", __config__=STRICT, **fields).model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        one = str(first["loc"][0])
        default = parameters[one].default
        usual = f" The default is {default!r}." if _written(default) else ""
        raise RecipeError(f"{key}.{one} is {given[one]!r}.", f"{first['msg']}.{usual}") from None
    found = {one: getattr(values, one) for one in parameters}
    return {one: value for one, value in found.items() if _written(value) or value is not parameters[one].default}


def _type(parameter: inspect.Parameter) -> Any:
    """What is annotated, if it means something to pydantic; else what the default is."""
    annotation = PLAIN.get(parameter.annotation, parameter.annotation)
    if annotation is not parameter.empty and not isinstance(annotation, str):
        try:
            TypeAdapter(annotation)
        except PydanticSchemaGenerationError:
            pass
        else:
            return annotation
    default = parameter.default
    if isinstance(default, (bool, str)):
        return type(default)
    if isinstance(default, (int, float)):
        return int | float
    if isinstance(default, tuple) and default:
        return tuple[tuple(int | float for _ in default)]  # type: ignore[misc]
    return Annotated[Any, BeforeValidator(_number)]


def _number(value: Any) -> Any:
    """YAML takes 1e-6 for a word."""
    if isinstance(value, list):
        return [_number(part) for part in value]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _written(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(isinstance(part, (int, float, str)) for part in value)
    return isinstance(value, (int, float, str)) and value is not False
