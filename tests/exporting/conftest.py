"""What the tests of exports share."""

import pytest

from supple.exporting import convert


@pytest.fixture
def traced_once(monkeypatch):
    """Tracing is the slow part: graphs of one name are traced once in a test, whatever they are exported to."""
    traced: dict[str, bytes] = {}
    to_onnx = convert.to_onnx

    def cached(graph) -> bytes:
        if graph.name not in traced:
            traced[graph.name] = to_onnx(graph)
        return traced[graph.name]

    monkeypatch.setattr(convert, "to_onnx", cached)
