"""The parts of a multipart body that is already in memory. Without torch, and without temporary files."""

import logging
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from supple.server.requests import Refusal

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # who sent it is told; the log has a line already
MOST_HEADER = 8192  # bytes of the headers of one part


@dataclass
class Part:
    """A file has a name of its own, or says what it is; a field has neither."""

    name: str = ""
    is_file: bool = False
    content: bytearray = field(default_factory=bytearray, repr=False)


class _Reader:
    """Puts together what the parser finds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.parts: list[Part] = []
        self.name, self.value, self.size, self.ended = bytearray(), bytearray(), 0, False

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self.begin,
            "on_header_field": self.header_name,
            "on_header_value": self.header_value,
            "on_header_end": self.header,
            "on_part_data": self.content,
            "on_end": self.end,
        }

    def begin(self) -> None:
        if len(self.parts) == self.most:
            raise Refusal(413, "too_large", f"The form has more than {self.most} parts.")
        self.parts.append(Part())
        self.size = 0

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self.name += self._piece(data, start, end)

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += self._piece(data, start, end)

    def _piece(self, data: bytes, start: int, end: int) -> bytes:
        self.size += end - start
        if self.size > MOST_HEADER:
            raise Refusal(400, "malformed", f"A part of the form has headers of more than {MOST_HEADER} bytes.")
        return data[start:end]

    def header(self) -> None:
        name, value = bytes(self.name).lower(), bytes(self.value)
        self.name, self.value = bytearray(), bytearray()
        if name == b"content-disposition":
            _, options = parse_options_header(value)
            self.parts[-1].name = options.get(b"name", b"").decode("utf-8", "replace")
            self.parts[-1].is_file |= b"filename" in options
        elif name == b"content-type":
            self.parts[-1].is_file |= not value.lower().startswith(b"text/plain")
        elif name == b"content-transfer-encoding" and value.strip().lower() not in (b"binary", b"8bit", b"7bit"):
            raise Refusal(415, "unsupported_media_type", "Parts of a form are sent as they are, without an encoding.")

    def content(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].content += data[start:end]

    def end(self) -> None:
        self.ended = True


def parts_of(body: bytes, content_type: str, most: int) -> list[Part]:
    """most: how many there may be."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:
        raise Refusal(400, "malformed", "The Content-Type of the form names no boundary of 1 to 70 characters.")
    reader = _Reader(most)
    try:
        parser = MultipartParser(boundary, reader.callbacks())  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Refusal(400, "malformed", "The body is not a valid form of this boundary.") from None
    if not reader.ended:
        raise Refusal(400, "malformed", "The form ends too early.")
    return reader.parts
