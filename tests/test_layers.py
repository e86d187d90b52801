"""Dependencies point one way, and what an exported folder needs does not load torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "supple"

# A room imports rooms of its own line and of those above it.
LAYERS = (
    ("errors", "text", "files", "machine", "device", "networks"),
    ("point", "tasks", "policy"),
    ("ladder",),
    ("model", "sampling"),
    ("methods", "backbones", "data", "recipe", "losses", "cost", "paper_count"),
    ("scoring", "checkpoint", "progress"),
    ("reporting",),
    ("training",),
    ("inference", "surgery", "analysis"),
    ("exporting",),  # graphs are checked on the engines that will run them
    ("searching",),  # points are timed as graphs
    ("opening", "showing"),
    ("experiments",),
    ("server", "cluster"),
    ("api",),
    ("cli", "__main__", "__init__"),
)
# Looked up when they are called, never when a module is loaded.
LATE = {
    ("supple.ladder", "supple.reporting.plots"),  # Ladder.plot
    ("supple.model", "supple.checkpoint"),  # model.save
    ("supple.model", "supple.surgery.deploy"),  # model.extract(deploy=True)
    ("supple.recipe", "supple.training.optim"),  # the names and arguments that a recipe may give
    ("supple.recipe", "supple.training.schedule"),
    ("supple.tasks.boxes", "supple.data.detection.batch"),  # masks pasted when boxes are scored
}
NEEDS_TORCH = ("supple.inference.engines.torch", "supple.inference.calibration")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("supple", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        yield name, ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules of supple that a module imports, wherever it does, save for type checking."""
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in typing and (node.module or "").startswith("supple"):
            yield from [f"supple.{alias.name}" for alias in node.names] if node.module == "supple" else [node.module]


def room(module: str) -> str:
    return (*module.split("."), "__init__")[1]


def test_every_room_has_its_place():
    known = {name for layer in LAYERS for name in layer}
    assert {room(name) for name, _ in modules()} == known


def test_dependencies_point_one_way():
    height = {name: place for place, layer in enumerate(LAYERS) for name in layer}
    wrong = {
        (name, target)
        for name, tree in modules()
        for target in imported(tree)
        if room(target) in height and height[room(target)] > height[room(name)]
    }
    assert wrong == LATE


def test_what_answers_needs_no_torch():
    names = [
        name
        for name, _ in modules()
        if room(name) in ("policy", "inference", "tasks", "server") and name not in NEEDS_TORCH
    ]
    program = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from importlib import import_module\n"
        f"for name in {names}:\n"
        "    import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
