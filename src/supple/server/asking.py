"""What a request to `/v1/models/NAME/predict` asks: its inputs and its options, whatever form it has. Without torch."""

import binascii
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from supple.server.forms import parts_of
from supple.server.requests import Given, Options, Refusal, invalid
from supple.text import did_you_mean

RAW = ("image/", "audio/", "application/octet-stream")
TAKEN = "Send image/*, audio/*, application/octet-stream, multipart/form-data or application/json."
OPTIONS = tuple(one.name for one in fields(Options))
KNOWN = (*OPTIONS, "stream")
MOST_VALUES = 250_000  # of a JSON document: a picture of 288 x 288 pixels, as numbers


@dataclass(frozen=True)
class Asked:
    given: list[Given]
    options: Options
    stream: bool


def asked(media: str, body: bytes, query: Iterable[tuple[str, str]], most: int) -> Asked:
    """media: the Content-Type; most: how many inputs there may be."""
    kind = media.partition(";")[0].strip().lower()
    words = named_once(query)
    given: list[Given]
    if kind == "application/json":
        document = from_json(body)
        given, words = _of_document(document, most), _both(words, {k: v for k, v in document.items() if k != "inputs"})
    elif kind == "multipart/form-data":
        parts = parts_of(body, media, most + len(KNOWN))
        given = [bytes(part.content) for part in parts if part.is_file]
        texts = [(part.name, part.content.decode("utf-8", "replace")) for part in parts if not part.is_file]
        words = _both(words, named_once(texts))
    elif kind.startswith(RAW) or not kind:
        given = [body]
    else:
        raise Refusal(415, "unsupported_media_type", f"The body is {kind!r:.60}. {TAKEN}")
    if not given:
        raise Refusal(400, "malformed", "The request has no input.")
    if len(given) > most:
        raise too_many(most)
    if not all(given):
        raise Refusal(422, "unusable_input", f"Input {given.index(b'')} is empty.")
    return Asked(given, *options_of(words))


def too_many(most: int) -> Refusal:
    return Refusal(413, "too_large", f"The request has more than {most} inputs.")


def from_json(body: bytes) -> dict[str, Any]:
    """An object; NaN and Infinity are not JSON. Values take up to 60 times the room of their text, and everybody waits
    while they are made: they are counted before (with what looks so in texts)."""
    if len(body) > MOST_VALUES and sum(map(body.count, (b",", b"[", b"{"))) >= MOST_VALUES:
        cure = "Send files as base64, arrays as binary tensors, or several requests."
        raise Refusal(413, "too_large", f"The JSON has more than {MOST_VALUES:,} values. {cure}")
    try:
        found = json.loads(body, parse_constant=_not_json)
    except (ValueError, RecursionError):  # also what is not UTF-8, and numbers of too many digits
        raise Refusal(400, "malformed", "The body is not valid JSON.") from None
    if not isinstance(found, dict):
        raise Refusal(400, "malformed", "The body is not a JSON object.")
    return found


def _not_json(constant: str) -> float:
    raise ValueError(constant)


def _of_document(document: Mapping[str, Any], most: int) -> list[Given]:
    inputs = document.get("inputs")
    if not isinstance(inputs, list):
        raise Refusal(400, "malformed", 'Inputs are given as "inputs": [{"data": "BASE64"}].')
    if len(inputs) > most:
        raise too_many(most)
    return [_of_input(place, one) for place, one in enumerate(inputs)]


def _of_input(place: int, one: Any) -> bytes:
    if not isinstance(one, dict) or set(one) != {"data"} or not isinstance(one["data"], str):
        raise Refusal(400, "malformed", f'Input {place} is not of the form {{"data": "BASE64"}}.')
    return from_base64(one["data"], f"Input {place}")


def from_base64(text: str, what: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise Refusal(400, "malformed", f"{what} is not valid base64.") from None


def named_once(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name in found:
            raise invalid(f"{name!r:.40} is given twice.")
        found[name] = text
    return found


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    if twice := set(one) & set(other):
        raise invalid(f"{min(twice)!r:.40} is given in the query and in the body.")
    return {**one, **other}


def options_of(words: Mapping[str, Any]) -> tuple[Options, bool]:
    """From texts of a query or a form, or from the values of JSON; `stream` apart."""
    for name in words:
        if name not in KNOWN:
            raise invalid(f"There is no option {name!r:.40}. {did_you_mean(name[:40], KNOWN)}")
    values = {name: _value(name, given) for name, given in words.items() if given is not None}
    stream = values.pop("stream", False)
    if not isinstance(stream, bool):
        raise invalid(f"stream is {stream!r:.40}; give true or false.")
    return Options(**values), stream


def _value(name: str, given: Any) -> Any:
    """Text as what it stands for; what cannot be read is left for `Options` to refuse."""
    if name == "point":
        return given
    if name in ("policy", "stream"):
        return {"true": True, "1": True, "false": False, "0": False}.get(given, given) if _is_text(given) else given
    if name == "top_k" and _is_text(given):
        return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else given
    if name == "budget_macs" and _is_text(given) and given.endswith("x"):
        return given
    if _is_text(given):
        return _number(name, given)
    if isinstance(given, int | float) and not isinstance(given, bool) and not _is_finite(given):
        raise invalid(f"{name} is not a usable number.")
    return given


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise invalid(f"{name} is {text!r:.40}; give a number.")
    return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _is_text(given: Any) -> bool:
    return isinstance(given, str)
