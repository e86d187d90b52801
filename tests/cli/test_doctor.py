"""What this installation has, what it lacks, and how to get it."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from supple.cli import doctor

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from supple.cli import main
sys.exit(main({words}))
"""


def without(names: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """`supple WORDS` where these packages cannot be imported."""
    program = BLOCKED.format(names=names, words=[*words])
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_doctor_looks_at_every_extra_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = {name: tuple(packages) for name, packages in project["optional-dependencies"].items() if name != "dev"}
    assert {name: packages for name, (_, packages) in doctor.EXTRAS.items()} == extras


def test_doctor_tells_of_each_extra_what_is_there_what_for_and_how_to_get_it(command, monkeypatch):
    monkeypatch.setattr(
        doctor, "EXTRAS", {"table": ("data frames", ("numpy",)), "ray": ("a cluster", ("numpy", "no-such"))}
    )
    table, ray = command("doctor", "--json").json["extras"]
    assert table == {
        "extra": "table",
        "ok": True,
        "packages": {"numpy": version("numpy")},
        "needed_for": "data frames",
        "cure": "",
    }
    assert (ray["ok"], ray["packages"]) == (False, {"numpy": version("numpy"), "no-such": None})
    assert ray["cure"] == "pip install 'supple[ray]'"
    text = command("doctor").out
    for word in ("[table]", "[ray]", version("numpy"), "no-such", "a cluster", "pip install 'supple[ray]'"):
        assert word in text


def test_doctor_fits_the_terminal(command, monkeypatch):
    monkeypatch.setattr("supple.text.width", lambda: 80)
    assert max(map(len, command("doctor").out.splitlines())) <= 80


def test_doctor_works_without_torch_and_says_so():
    done = without(("torch", "torchvision", "timm", "safetensors"), "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    checks = {check["what"]: check for check in found["checks"]}
    assert not checks["torch"]["ok"]
    assert "torch" in checks["torch"]["cure"]
    assert checks["disk here"]["ok"]
    assert len(found["extras"]) == len(doctor.EXTRAS)
    plain = without(("torch",), "doctor")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "cannot be imported" in plain.stdout


def test_doctor_says_how_to_get_torch_where_there_is_none(command, monkeypatch):
    monkeypatch.setattr(doctor, "_torch", lambda: (None, "No module named 'torch'"))
    monkeypatch.setattr(doctor, "versions", lambda: {"supple": "1", "torch": "not installed"})
    checks = {check["what"]: check for check in command("doctor", "--json").json["checks"]}
    assert checks["torch"] == {"what": "torch", "ok": False, "found": "not installed", "cure": "pip install torch"}


def test_what_only_looks_broken_is_told_apart_from_what_is_missing():
    done = without(("torch",), "doctor", "--json")  # its files are there
    checks = {check["what"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["torch"]["found"] == f"{version('torch')}, but it cannot be imported: No module named 'torch'"
