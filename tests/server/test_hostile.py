"""Clients and files that mean harm, against `supple serve` as anybody starts it.

In full, and against a larger model: benchmarks/serve_hostile.py.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from serve_hostile import ATTACKS, Sizes, Target, attacked
from serve_hostile_files import FORMATS, mutated
from serve_process import Started, free_port, left

SIZES = Sizes(mutants=240, slow=60, seconds=6.0)

# Put in front of everything that the started server imports: notes which files it opens.
SPY = """
import os, sys
_log = open(os.environ["SPIED"], "a", buffering=1)
def _noted(event, given):
    if event == "open" and isinstance(given[0], (str, bytes)):
        name = os.fsdecode(given[0])
        if not name.endswith((".py", ".pyc", ".so")):  # imports of what is needed now and then
            _log.write(name + "\\n")
sys.addaudithook(_noted)
"""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="what processes use is read from /proc"),
]


@pytest.fixture(scope="module")
def spied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spy")
    (folder / "sitecustomize.py").write_text(SPY)
    (folder / "opened").touch()
    return folder


@pytest.fixture(scope="module")
def target(exits_run: Path, spied: Path) -> Iterator[Target]:
    port = free_port()
    command = [sys.executable, "-m", "supple", "serve", f"model={exits_run}", "--engine", "torch", "--port", str(port)]
    server = Started(command, port, None, {"PYTHONPATH": str(spied), "SPIED": str(spied / "opened")})
    family = []
    try:
        asyncio.run(server.ready())
        family = server.tree()
        yield Target(port, server=server)
    finally:
        code = server.stop()
    assert code == 0
    assert left(family) == []


def attack(name: str, target: Target) -> None:
    (found,) = asyncio.run(attacked(target, SIZES, {name: ATTACKS[name]}))
    # Other tests run beside this one: how fast ordinary requests are, the benchmark says.
    rows = [row for row in found.all_rows() if not row.what.startswith("- p99")]
    assert found.statuses
    assert [row for row in rows if row.met is False] == []


def test_damaged_and_made_up_files_are_answered_within_the_limits_of_memory(target: Target) -> None:
    attack("files", target)


def test_slow_clients_are_sent_away_within_ten_seconds(target: Target) -> None:
    attack("slow", target)


def test_requests_beyond_the_limits_are_refused_before_they_have_been_read(target: Target) -> None:
    attack("sizes", target)


def test_strange_names_of_models_open_no_file(target: Target, spied: Path) -> None:
    before = (spied / "opened").read_text()
    assert "manifest.json" in before  # it does notice
    attack("names", target)
    assert (spied / "opened").read_text() == before


def test_mutations_are_of_every_format_and_the_same_each_time() -> None:
    first = list(mutated(60, 3))
    assert first == list(mutated(60, 3))
    assert first != list(mutated(60, 4))
    assert len(set(first)) == 60
    assert len(FORMATS) == 6
