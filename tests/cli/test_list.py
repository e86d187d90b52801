"""One line for each entry, found by words, and the page of every key."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from supple import text
from supple.cli.list import names, recipe_lines
from supple.cli.reference import REQUIRED, comments, page, reference, summary, type_name
from supple.data.registry import DATASETS
from supple.methods import METHODS
from supple.recipe import Copycat, Data, Train, data_options, options

ROOT = Path(__file__).parents[2]


def test_list_fits_a_terminal_one_line_for_each_entry(command, monkeypatch):
    monkeypatch.setattr(text, "width", lambda: 80)
    lines = command("list").out.splitlines()
    assert max(map(len, lines)) <= 80
    known = names()
    assert set(known) == {"backbones", "methods", "branches", "losses", "data sets", "sampling"}
    for title, entries in known.items():
        start = lines.index(title)
        shown = [line.split()[0] for line in lines[start + 1 : start + 1 + len(entries)]]
        assert shown == list(entries)
        assert lines[start + 1 + len(entries)] == ""
    assert len(lines) < 90
    assert max(map(len, command("list", "--recipes").out.splitlines())) <= 80


def test_every_entry_says_what_it_is():
    silent = [name for entries in {**names(), **recipe_lines()}.values() for name, line in entries.items() if not line]
    assert silent == []


def test_without_a_terminal_nothing_is_cut(command):
    first = [line for entries in recipe_lines().values() for line in entries.values()]
    plain = command("list", "--recipes").out
    assert all(line in plain for line in first)


def test_words_find_entries_by_name_or_sentence(command):
    found = command("list", "vit").out
    assert "vit_cifar" in found
    assert "sl_vit" in found
    assert "msdnet" not in found.split()
    lines = command("list", "--recipes", "cifar100", "TAM").out.splitlines()
    entries = [line for line in lines if line.startswith("  ")]
    assert {Path(line.split()[0]).name for line in entries} == {
        "mobilenet_cifar100_tam.yaml",
        "msdnet_cifar100_tam.yaml",
    }
    assert "backbones" not in lines
    command("list", "no-such-word").refused(2, '"no-such-word"', "supple list --recipes")


def test_json_is_complete_and_words_choose_from_it(command):
    everything = command("list", "--json").json
    assert set(everything["methods"]) == set(METHODS)
    some = command("list", "digits", "--json").json
    assert list(some["data"]) == ["digits"]
    assert some["data"]["digits"] == everything["data"]["digits"]
    assert set(some) == set(everything)
    assert some["recipes"].items() < everything["recipes"].items()


def test_recipes_are_listed_without_torch():
    code = """
import sys
from supple.cli import main
assert main(["list", "--recipes", "digits"]) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- the page of every key --------------------------------------------------------------------------------------------


def test_the_page_of_keys_is_what_the_source_says(command):
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == command("list", "--keys").out, (
        "Write it again: supple list --keys > docs/reference.md"
    )


def test_every_key_of_every_section_is_there(command):
    found = {
        section: {entry["name"]: {key["key"].rpartition(".")[2] for key in entry["keys"]} for entry in entries}
        for section, entries in command("list", "--keys", "--json").json.items()
    }
    assert found["train"][""] == set(Train.model_fields)
    assert found["copycat"][""] == set(Copycat.model_fields)
    for name, method in METHODS.items():
        assert found["method"][name] == set(options(method).model_fields)
    entries, shared = reference()["data"], set(Data.model_fields)
    for name, entry in DATASETS.items():
        own = next(e for e in entries if e.name == name)
        family = [e for e in entries if not e.name and name in e.about.replace(":", ",").replace(" ", ",").split(",")]
        keys = {key.key.removeprefix("data.") for e in (own, *family) for key in e.keys}
        assert keys | shared == set(data_options(name, entry.settings()).model_fields)
        shown = {key.key.removeprefix("data."): key.default for e in (*family, own) for key in e.keys}
        for key, usual in entry.usual.items():
            assert shown[key] == str(list(usual) if isinstance(usual, tuple) else usual)


class Model(BaseModel):
    plain: int = 1  # how many; None: all
    split: Annotated[int, Field(ge=1)] = Field(3, le=5)  # after the end
    silent: str = ""


def made(*, one: int, other: float = 0.5, name: str = "a") -> None:
    """Makes one ... or none. And more."""


def apart(
    *,
    at: tuple[str, ...] = (),  # layers; name#2: its second call
    args: dict[str, int] = {},  # noqa: B006  # further ones
    kind: Literal["kl", "ce"] = "kl",
) -> None: ...


def test_comments_are_those_beside_a_key():
    assert comments(Model) == {"plain": "how many; null: all", "split": "after the end"}
    assert comments(made) == {}
    assert comments(apart) == {"at": "layers; name#2: its second call", "args": "further ones"}
    assert comments(len) == {}
    assert summary(made) == "Makes one ... or none."


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (int, "int"),
        (int | None, "int or null"),
        (Annotated[int, Field(ge=1, le=9)] | None, "int >= 1 and <= 9 or null"),
        (Annotated[float | None, Field(gt=0)], "float > 0 or null"),
        (Literal["a", 1], "a, 1"),
        (tuple[int, ...], "list of int"),
        (tuple[tuple[int, int], ...], "list of list of 2 int"),
        (dict[str, int], "mapping"),
    ],
)
def test_types_are_said_as_recipes_write_them(kind, said):
    assert type_name(kind) == said


def test_what_has_no_default_is_required():
    keys = {key.key: key.default for key in reference()["copycat"][0].keys}
    assert (keys["copycat.root"], keys["copycat.ratio"], keys["copycat.limit"]) == (REQUIRED, "2.0", "null")
    assert "| required |" in page()
