"""What the tests share: one thread per worker, two tiny trained runs, commands, and real data where there are any."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from supple.cli import main
from supple.training.loop import train
from tiny import tiny_document, tiny_recipe

torch.set_num_threads(1)  # one per xdist worker: more would only get in each other's way
settings.register_profile("same", derandomize=True)  # the same examples in every run; hunt for others with
settings.load_profile("same")  # pytest --hypothesis-profile=default


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A test that trains, predicts or measures may set another number; what is trained for all tests has one too."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which form of a network is the fastest matters to benchmarks, not to tests."""
    monkeypatch.setattr("supple.surgery.deploy.LONG_ENOUGH_S", 0)


def _trained(factory: pytest.TempPathFactory, method: str) -> Path:
    return train(tiny_recipe(method), factory.mktemp(method) / "run", quiet=True)


@pytest.fixture(scope="session")
def exits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tiny MSDNet with points exit=1, exit=2, full. Only to be read: copy it to change it."""
    return _trained(tmp_path_factory, "exits")


@pytest.fixture(scope="session")
def slim_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tiny slimmable MobileNet with points width=0.5, full. Only to be read."""
    return _trained(tmp_path_factory, "slim")


@pytest.fixture
def exits_copy(exits_run: Path, tmp_path: Path) -> Path:
    """A copy of `exits_run` that a test may change or break."""
    return Path(shutil.copytree(exits_run, tmp_path / "exits-copy"))


@pytest.fixture
def slim_copy(slim_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(slim_run, tmp_path / "slim-copy"))


@pytest.fixture(scope="session")
def exits_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe that `exits_run` was trained from, as a file."""
    path = tmp_path_factory.mktemp("recipes") / "exits.yaml"
    path.write_text(json.dumps(tiny_document("exits")))
    return path


@pytest.fixture(scope="session")
def slim_yaml(exits_yaml: Path) -> Path:
    path = exits_yaml.with_name("slim.yaml")
    path.write_text(json.dumps(tiny_document("slim")))
    return path


@dataclass(frozen=True)
class Said:
    """What a command left behind: exit status, stdout and stderr."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout (more than one, or anything beside it, does not parse)."""
        assert self.status == 0, self.err
        return json.loads(self.out)

    def refused(self, status: int, *words: str) -> str:
        """Checks an error: nothing on stdout, on stderr one line of cause and one of cure, which hold these words."""
        assert (self.status, self.out) == (status, ""), self
        cause, cure = self.err.splitlines()
        assert cause.startswith("error: ")
        assert cure
        assert "This should not happen" not in cure
        for word in words:
            assert word in self.err, self.err
        return self.err


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`supple VERB ...` in this process."""

    def run(*words: object) -> Said:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return Said(status, *capsys.readouterr())

    return run


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, list[int]]]:
    """Every progress bar that is made: its text, its total and what it was advanced by."""
    made: list[tuple[str, int, list[int]]] = []

    @contextmanager
    def counting(total: int, text: str, **how: object) -> Iterator[Callable[[int], None]]:
        made.append((text, total, []))
        yield made[-1][2].append

    monkeypatch.setattr("supple.progress.counting", counting)
    monkeypatch.setattr("supple.api.measuring.counting", counting)
    monkeypatch.setattr("supple.api.using.counting", counting)
    return made


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], str]:
    """Finds a real data set by name in the folders of $SUPPLE_DATA; skips the test where it is not there."""

    def find(name: str) -> str:
        for folder in filter(None, os.environ.get("SUPPLE_DATA", "").split(os.pathsep)):
            if (Path(folder) / name).exists():
                return str(Path(folder) / name)
        pytest.skip(f"no real data: {name} is in no folder of $SUPPLE_DATA")

    return find
