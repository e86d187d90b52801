"""Recipes: every setting is checked, what is wrong is refused by name, a resolved recipe says the same again."""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from supple.errors import RecipeError
from supple.recipe import LARGEST, Recipe, find_recipe, load_recipe, make_recipe, options, recipe_folders

ROOT = Path(__file__).parents[2] / "recipes"
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.yaml") if path.parent.name != "claims")
SGD = {"name": "sgd", "momentum": 0.9, "dampening": 0}
BASE: dict[str, Any] = {
    "data": {"name": "generated"},
    "backbone": {"name": "msdnet"},
    "method": {"name": "exits"},
}


@cache
def recipe_at(name: str) -> Recipe:
    return load_recipe(ROOT / name)


def from_file(content: bytes, *changes: str) -> Recipe:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mine.yaml"
        path.write_bytes(content)
        return load_recipe(path, changes)


# --- the files that come with supple ---


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_its_command_and_names_only_recipes_that_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    commands = re.findall(rf"^# supple train recipes/{name}(?: (\S+=\S+))?(?: --out \S+)?$", text, re.M)
    assert commands
    for change in filter(None, commands):
        assert load_recipe(ROOT / name, [change]) != recipe_at(name)
    assert set(re.findall(r"recipes/([\w/]+\.yaml)", text)) <= set(FILES)


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(("pocket/", "zoo/"))])
def test_a_file_of_a_paper_says_what_was_published(name: str) -> None:
    assert re.search(r"^# Published: ", (ROOT / name).read_text(), re.M)


@pytest.mark.parametrize("name", FILES)
def test_a_resolved_recipe_says_the_same_again_as_data_and_as_yaml(name: str, tmp_path: Path) -> None:
    recipe = recipe_at(name)
    assert make_recipe(recipe.resolved()) == recipe
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == recipe
    assert yaml.safe_load(recipe.to_yaml()) == recipe.resolved()  # other readers see the same


def test_an_experiment_is_not_taken_for_a_recipe() -> None:
    with pytest.raises(RecipeError, match="an experiment of many trainings") as caught:
        load_recipe("claims/sidt.yaml")
    assert "supple reproduce sidt" in caught.value.cure


# --- changes and types ---


@pytest.mark.parametrize(
    ("change", "section", "key", "value"),
    [
        ("train.epochs=3", "train", "epochs", 3),
        ("train.lr=1e-4", "train", "lr", 1e-4),  # YAML 1.1 reads this as a word
        ("train.lr=1E4", "train", "lr", 1e4),
        ("train.lr=.5", "train", "lr", 0.5),
        ("train.epochs=010", "train", "epochs", 10),  # and this as 8
        ("train.compile=off", "train", "compile", "off"),  # and this as False
        ("train.compile=on", "train", "compile", "on"),
        ("train.optimizer.nesterov=true", "train", "optimizer", {**SGD, "nesterov": True}),
        ("train.optimizer=adam", "train", "optimizer", {"name": "adam", "betas": (0.9, 0.999), "eps": 1e-8}),
        (
            "train.optimizer={name: lion, betas: [0.5, 1e-1]}",
            "train",
            "optimizer",
            {"name": "lion", "betas": (0.5, 0.1)},
        ),
        ("train.schedule=plateau", "train", "schedule", {"name": "plateau", "gamma": 0.1, "patience": 2}),
        ("train.settle=[width=0.35]", "train", "settle", ("width=0.35",)),
        ("data.holdout=0.25", "data", "holdout", 0.25),
        ("data.holdout=500", "data", "holdout", 500),
        ("data.root=2001-01-01", "data", "root", "2001-01-01"),  # a folder, not a date
        ("data.root=a=b", "data", "root", "a=b"),
        ("data.root='5'", "data", "root", "5"),
        ("data.root=null", "data", "root", None),
        ("data.root=", "data", "root", None),
        (" data.size =16", "data", "size", 16),
        ("backbone.blocks=3", "backbone", "blocks", 3),
        ("backbone.growth_factors=[1, 2]", "backbone", "growth_factors", (1, 2)),
        ("loss.tau=2", "loss", "tau", 2.0),
        ("loss.teachers=[[0, 1], [0, 0]]", "loss", "teachers", ((0.0, 1.0), (0.0, 0.0))),
    ],
)
def test_a_change_has_the_type_of_its_field(change: str, section: str, key: str, value: Any) -> None:
    recipe = make_recipe({**BASE, "data": {"name": "folder"}}, [change])
    given = getattr(recipe, section)
    found = given[key] if isinstance(given, dict) else getattr(given, key)
    assert found == value
    assert type(found) is type(value)
    assert make_recipe(recipe.resolved()) == recipe


def test_later_changes_win_and_what_was_given_is_not_altered() -> None:
    document = {**BASE, "train": {"epochs": 5, "lr": 0.3}}
    recipe = make_recipe(document, ["train.epochs=7", "train.epochs=8"])
    assert (recipe.train.epochs, recipe.train.lr) == (8, 0.3)
    assert document == {**BASE, "train": {"epochs": 5, "lr": 0.3}}
    assert make_recipe(BASE, ["method.name=slim", "backbone.name=mobilenet_v1"]).method["widths"] == (
        0.25,
        0.5,
        0.75,
        1,
    )


def test_loss_and_train_may_be_left_out_and_every_default_is_written_out() -> None:
    document = make_recipe(BASE).resolved()
    assert document["loss"]["name"] == "distill"
    assert {"epochs", "seed", "settle", "compile"} <= document["train"].keys()
    assert {"blocks", "growth_factors", "stem"} <= document["backbone"].keys()


def test_a_recipe_cannot_be_altered_after_it_was_checked() -> None:
    recipe = make_recipe(BASE)
    with pytest.raises(ValidationError):
        recipe.train.epochs = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        recipe.train = recipe.train  # type: ignore[misc]


WORDS = ["off", "1e4", "1e-4", "010", "1:30", "2001-01-01", "null", "~", "true", "5", ".5", ".nan", "a: b", "#x", "<<"]


@settings(deadline=None)
@given(st.sampled_from(WORDS) | st.text(max_size=20).filter(lambda text: "\0" not in text))
def test_any_word_survives_the_saved_recipe(word: str) -> None:
    recipe = make_recipe({**BASE, "data": {"name": "folder", "root": word}})
    assert make_recipe(yaml.load(recipe.to_yaml(), yaml.SafeLoader)).data.root == word
    assert from_file(recipe.to_yaml().encode()).data.root == word


def toy(
    logits: Any,
    num_classes: int,
    *,
    in_channels: int = 3,
    depth: int,
    kind: Literal["a", "b"] = "a",
    rates: tuple[float, ...] = (0.5,),
) -> None: ...


def test_the_settings_of_a_function_are_its_keyword_arguments_with_their_types_and_defaults() -> None:
    model = options(toy)
    assert list(model.model_fields) == ["depth", "kind", "rates"]  # data decide num_classes and in_channels
    assert model(depth=2).model_dump() == {"depth": 2, "kind": "a", "rates": (0.5,)}
    assert model(depth=2, rates=["1e-3", 1]).model_dump()["rates"] == (1e-3, 1.0)
    for wrong in ({}, {"depth": 2.5}, {"depth": 2, "kind": "c"}, {"depth": 2, "widht": 3}):
        with pytest.raises(ValidationError):
            model(**wrong)


# --- what is refused ---


def refused(*changes: str, document: Any = BASE, where: str = "recipe") -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        make_recipe(document, changes, where)
    assert caught.value.cause
    assert caught.value.cure
    assert caught.value.status == 2
    return caught.value


@pytest.mark.parametrize(
    ("change", "unknown", "meant"),
    [
        ("data.batchsize=3", "data.batchsize", "data.batch_size"),
        ("backbone.block=3", "backbone.block", "backbone.blocks"),
        ("method.withs=3", "method.withs", None),
        ("loss.teacher=all", "loss.teacher", "loss.teachers"),
        ("train.epohcs=3", "train.epohcs", "train.epochs"),
        ("train.epochs.more=3", "train.epochs.more", "train.epochs"),
        ("trian.epochs=3", "trian.epochs", "train.epochs"),
        ("backbone.num_classes=3", "backbone.num_classes", None),  # data decide
        ("data.name=cifar11", "cifar11", "cifar10"),
        ("data.name=5", "5", None),
        ("backbone.name=msdnt", "msdnt", "msdnet"),
        ("method.name=exit", "exit", "exits"),
        ("loss.name=destill", "destill", "distill"),
        ("train.sample=sandwhich", "sandwhich", "sandwich"),
        ("method.name=[exits]", "exits", None),
    ],
)
def test_an_unknown_key_or_name_is_named_with_a_guess_at_what_was_meant(
    change: str, unknown: str, meant: str | None
) -> None:
    error = refused(change)
    assert unknown in error.cause
    assert (f'Did you mean "{meant}"?' in error.cure) if meant else error.cure.startswith(("Possible", "Did you"))


def test_an_unknown_key_in_a_document_is_named_with_the_file() -> None:
    for section in BASE:
        document = {**BASE, section: {**BASE[section], "sead": 1}}
        assert f'mine.yaml: unknown key "{section}.sead"' in refused(document=document, where="mine.yaml").cause
    error = refused(document={**BASE, "modle": {}}, where="mine.yaml")
    assert 'mine.yaml: unknown key "modle"' in error.cause
    for key in (5, None, (1, 2)):
        assert str(key) in refused(document={**BASE, key: 1}).cause
        assert str(key) in refused(document={**BASE, "data": {"name": "digits", key: 1}}).cause


@pytest.mark.parametrize(
    "change",
    [
        *("train.epochs=0", "train.epochs=many", "train.epochs=2.5", "train.epochs=", "train.epochs=[3]"),
        *("train.lr=0", "train.lr=.nan", "train.optimizer=3", "train.schedule=[cosine]"),
        *("train.optimizer.momentum=much", "train.optimizer.nesterov=perhaps", "train.optimizer.momentum=.nan"),
        *("train.compile=maybe", "data.batch_size=0", "data.holdout=0", "data.channels=2"),
        *("data.flip=perhaps", "backbone.blocks=two", "loss.kind=kll", "loss.teachers=nobody"),
    ],
)
def test_a_value_of_the_wrong_kind_or_out_of_range_names_its_key(change: str) -> None:
    key, _, value = change.partition("=")
    error = refused(change)
    assert error.cause.startswith(f"recipe: {key} is ")
    assert value.strip("[]").lstrip(".") in error.cause
    assert not error.cure.startswith("Add")


@pytest.mark.parametrize("change", ["epochs=3", "train.epochs", "train", "", "=3", "train.=3", "train=3"])
def test_what_is_no_change_is_refused_with_an_example(change: str) -> None:
    assert "train.epochs=3" in refused(change).cure


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "{a: 1",
        "!!int x",
        "!!map [a]",
        "!!bool x",
        "!!timestamp x",
        "!!python/name:os.system",
        "{a: 1, a: 2}",
        "*x",
    ],
)
def test_a_value_that_is_no_yaml_is_refused(text: str) -> None:
    assert text in refused(f"data.root={text}").cause


@pytest.mark.parametrize("document", [None, 5, "data", [], [BASE]])
def test_what_has_no_sections_is_refused(document: Any) -> None:
    assert "data, backbone, method" in refused(document=document).cure


@pytest.mark.parametrize("section", ["data", "backbone", "method", "loss", "train"])
def test_a_section_that_is_missing_or_no_section_is_named(section: str) -> None:
    for wrong in (None, 5, "digits", [1]):
        for changes in ((), ("data.size=8", "backbone.blocks=2", "method.x=1", "loss.tau=1", "train.epochs=3")):
            if wrong is None and changes:
                continue  # changes make the section
            assert f'"{section}"' in refused(*changes, document={**BASE, section: wrong}).cause
    if section in BASE:
        assert f'"{section}"' in refused(document={k: v for k, v in BASE.items() if k != section}).cause
        nameless = refused(document={**BASE, section: {}})
        assert f"{section}.name" in f"{nameless.cause} {nameless.cure}"


FILE = yaml.safe_dump(BASE).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (FILE + b"data: {name: digits}\n", '"data" is given twice'),
        (FILE + b"train: {epochs: 3, lr: 0.1, epochs: 4}\n", '"epochs" is given twice'),
        (FILE + b"train: {optimizer: {a: 1, a: 1}}\n", '"a" is given twice'),
        (FILE + b"train: {epochs: 3", "not valid YAML"),
        (FILE + b"loss: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        (FILE + b"# \xff\xfe\n", "not valid YAML"),
        (b"\x00\x01", "not valid YAML"),
        (b"[" * 1500, "not valid YAML"),
        (b"", "no sections"),
        (b"- data\n", "no sections"),
        (FILE + b"one: &one {epochs: 3}\ntrain: {<<: *one, lr: 0.1}\n", "unknown key"),  # no inheritance
        (FILE + b"train: &self {optimizer: *self}\n", "train.optimizer.optimizer"),
        (FILE + b"#" * LARGEST, f"larger than {LARGEST} bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_file_is_refused_by_name(content: bytes, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        from_file(content)
    assert "mine.yaml" in caught.value.cause
    assert said in caught.value.cause
    assert caught.value.cure
    assert len(str(caught.value)) < 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted({f"{s}.{k}" for s, part in make_recipe(BASE).resolved().items() for k in part})


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(KEYS), VALUES)
@example("loss.weights", ["INF"])
@example("train.lr", float("nan"))
def test_any_value_for_any_key_makes_a_recipe_that_resolves_to_itself_or_a_recipe_error(key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    try:
        recipe = make_recipe(
            {**BASE, section: {**BASE.get(section, {"name": "distill"} if section == "loss" else {}), name: value}}
        )
    except RecipeError:
        return
    assert make_recipe(recipe.resolved()) == recipe


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(KEYS), st.text(max_size=12) | st.text(alphabet="[]{}!&*<:,-#'\"0b1._eE x", max_size=12))
def test_any_text_is_a_change_or_a_recipe_error(key: str, text: str) -> None:
    for call in (lambda: make_recipe(BASE, [f"{key}={text}"]), lambda: from_file(FILE + text.encode())):
        try:
            call()
        except RecipeError:
            continue


# --- where recipes are found ---


def test_recipes_are_found_by_path_and_by_name_with_or_without_the_ending(tmp_path: Path) -> None:
    target = ROOT / "pocket" / "digits.yaml"
    for name in (target, str(target), "pocket/digits.yaml", "pocket/digits", "recipes/pocket/digits.yaml"):
        assert find_recipe(name).samefile(target)
    assert ROOT in recipe_folders()
    (tmp_path / "mine.txt").write_bytes(FILE)  # a file that is named may have any ending
    assert load_recipe(tmp_path / "mine.txt", ["train.epochs=3"]).train.epochs == 3


@pytest.mark.parametrize("name", ["pocket/digit", "msdnet_cifar10_tam", "nowhere.yaml", "pocket", "", ".", "/", "\0"])
def test_a_recipe_that_is_not_there_is_named_with_a_guess_or_a_list(name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        find_recipe(name)
    assert name in caught.value.cause
    assert "supple list" in caught.value.cure
    if name == "pocket/digit":
        assert 'Did you mean "pocket/digits.yaml"?' in caught.value.cure
