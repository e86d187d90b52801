"""Tensors as the Open Inference Protocol writes them: numbers in JSON, or bytes behind it. Without torch.

Every size is checked against what really came before anything is made of it.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from supple.server.answering import as_json
from supple.server.asking import from_base64, from_json
from supple.server.requests import Array, Refusal

LENGTH = "inference-header-content-length"
FP32, BYTES = "FP32", "BYTES"


@dataclass(frozen=True)
class Tensor:
    """An input as it came: its data are numbers or texts of JSON, or bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any  # list, or memoryview

    def floats(self) -> Array:
        count = math.prod(self.shape)
        if isinstance(self.data, memoryview):
            if len(self.data) != 4 * count:
                raise malformed(f"{self.name} has {len(self.data)} bytes; its shape needs {4 * count}.")
            found = np.frombuffer(self.data, "<f4")
        else:
            try:
                with np.errstate(over="ignore"):  # infinity then, which is refused as such
                    found = np.asarray(self.data, np.float32).ravel()
            except (ValueError, TypeError, OverflowError, RecursionError):
                raise malformed(f"The data of {self.name} are not numbers, flat or nested as its shape.") from None
            if found.size != count:
                raise malformed(f"{self.name} has {found.size} numbers; its shape needs {count}.")
        return found.reshape(self.shape)

    def files(self) -> list[bytes]:
        """Of JSON, every text is base64."""
        count = math.prod(self.shape)
        if isinstance(self.data, memoryview):
            found = list(islice(_elements(self.data, self.name), count + 1))
        elif all(isinstance(one, str) for one in self.data):
            found = [from_base64(one, f"The data of {self.name}") for one in self.data]
        else:
            raise malformed(f"The data of {self.name} are not a list of base64 texts.")
        if len(found) != count:
            raise malformed(f"{self.name} has not as many elements as its shape: {count}.")
        return found


def malformed(message: str) -> Refusal:
    return Refusal(400, "malformed", message)


def read_request(body: bytes, header_length: str | None) -> tuple[dict[str, Any], list[Tensor]]:
    """The JSON of a request, and its inputs. header_length: where the JSON ends and bytes begin."""
    if header_length is None:
        end = len(body)
    elif header_length.isascii() and header_length.isdecimal() and int(header_length[:12]) <= len(body):
        end = int(header_length)
    else:
        raise malformed("Inference-Header-Content-Length is not a length within the body.")
    document, rest = from_json(body[:end]), memoryview(body)[end:]
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise malformed("The request has no list of inputs.")
    found = []
    for given in inputs:
        tensor, rest = _tensor(given, rest)
        found.append(tensor)
    if len(rest):
        raise malformed(f"{len(rest)} bytes of the body belong to no input.")
    return document, found


def _tensor(given: Any, rest: memoryview) -> tuple[Tensor, memoryview]:
    """One input, and the bytes that are left for those behind it."""
    if not isinstance(given, dict):
        raise malformed("An input is not a JSON object.")
    name, datatype, shape = given.get("name"), given.get("datatype"), given.get("shape")
    if not isinstance(name, str) or not isinstance(datatype, str):
        raise malformed("An input needs a name and a datatype.")
    if not isinstance(shape, list) or not _is_shape(shape):
        raise malformed(f"The input {name!r:.60} has no usable shape.")
    parameters = parameters_of(given)
    if other := set(parameters) - {"binary_data_size"}:
        raise malformed(f"An input has no parameter {min(other)!r:.60}.")
    size = parameters.get("binary_data_size")
    if size is None:
        if not isinstance(given.get("data"), list):
            raise malformed(f"The input {name!r:.60} has no list of data.")
        return Tensor(name, datatype, tuple(shape), given["data"]), rest
    if "data" in given or isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(rest):
        raise malformed(f"binary_data_size of {name!r:.60} is not the number of its bytes behind the JSON.")
    return Tensor(name, datatype, tuple(shape), rest[:size]), rest[size:]


def _is_shape(sides: list[Any]) -> bool:
    """Few sides, none of them empty or so long that their product could be too large a number to work with."""
    return 0 < len(sides) <= 8 and all(type(side) is int and 0 < side < 2**31 for side in sides)


def parameters_of(given: dict[str, Any]) -> dict[str, Any]:
    found = given.get("parameters", {})
    if not isinstance(found, dict):
        raise malformed("The parameters are not a JSON object.")
    return found


def _elements(data: memoryview, name: str) -> Iterable[bytes]:
    """Each behind its length in four bytes, the smallest first."""
    while len(data):
        if len(data) < 4:
            raise malformed(f"{name} ends within the length of an element.")
        (length,) = struct.unpack_from("<I", data)
        if length > len(data) - 4:
            raise malformed(f"An element of {name} is longer than what is left of it.")
        yield bytes(data[4 : 4 + length])
        data = data[4 + length :]


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Output:
    name: str
    value: Array  # float32, or texts (dtype object); the inputs first
    binary: bool

    @property
    def datatype(self) -> str:
        return BYTES if self.value.dtype == object else FP32

    def packed(self) -> bytes:
        if self.datatype == FP32:
            return np.ascontiguousarray(self.value, "<f4").tobytes()
        texts = [text.encode() for text in self.value.ravel().tolist()]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def write_response(head: dict[str, Any], outputs: Sequence[Output]) -> tuple[bytes, int | None]:
    """The body, and where its JSON ends; None: it is all JSON."""
    described, packed = [], []
    for output in outputs:
        facts: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.value.shape)}
        if output.binary:
            packed.append(output.packed())
            facts["parameters"] = {"binary_data_size": len(packed[-1])}
        else:
            facts["data"] = output.value.ravel().tolist()
        described.append(facts)
    text = as_json({**head, "outputs": described})
    return (b"".join([text, *packed]), len(text)) if packed else (text, None)
