"""What a stranger installs is whole."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def test_every_folder_of_recipes_is_installed():
    folders = {path.parent.name for path in (ROOT / "recipes").rglob("*.yaml")}
    declared = PROJECT["tool"]["setuptools"]["data-files"]
    assert declared == {f"share/supple/recipes/{name}": [f"recipes/{name}/*.yaml"] for name in folders}


def test_every_requirement_is_pinned_by_name_and_version():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", line) for line in lines)
    pinned = {name_of(line) for line in lines}
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    assert {name_of(requirement) for requirement in wanted} <= pinned


def test_the_version_is_said_once_and_the_same():
    import supple

    assert supple.__version__ == PROJECT["project"]["version"]
    assert f"## {supple.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_ci_runs_what_a_person_runs():
    script = (ROOT / ".ci" / "run").read_text()
    assert all(f"make {target}" in script for target in ("lint", "types", "test"))


def test_no_large_file_is_in_the_repository():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = [ROOT / name for name in done.stdout.split("\0") if name] or list((ROOT / "src").rglob("*.py"))
    large = [path for path in names if path.is_file() and path.stat().st_size > 500_000]
    assert [path for path in large if ROOT / "src" / "supple" / "networks" not in path.parents] == []


def test_every_network_that_comes_with_supple_is_installed():
    """Their folders and those files that a run has, by the patterns of pyproject.toml."""
    folder = ROOT / "src" / "supple"
    declared = PROJECT["tool"]["setuptools"]["package-data"]["supple"]
    installed = {path for pattern in declared for path in folder.glob(pattern)}
    assert {path for path in (folder / "networks").glob("*/*") if path.suffix in (".json", ".safetensors")} <= installed
    assert {f"networks/*/*{ending}" for ending in (".json", ".safetensors")} <= {*declared}
    assert set((folder / "server" / "page" / "samples").iterdir()) <= installed  # which the demo shows
