"""What a server may be told, and who may reach it."""

from pathlib import Path

import pytest

from supple.errors import RecipeError
from supple.server.settings import must_be_guarded, named_sources


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_alone_needs_no_token(host):
    must_be_guarded(host, None, no_auth=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org", ""])
def test_other_machines_need_one_or_somebody_who_says_otherwise(host):
    with pytest.raises(RecipeError, match="--token"):
        must_be_guarded(host, None, no_auth=False)
    must_be_guarded(host, "correct-horse", no_auth=False)
    must_be_guarded(host, None, no_auth=True)


@pytest.mark.parametrize("token", ["", "short", "with a space", "w\u00f6rter-und-mehr", "line\nline-line"])
def test_tokens_that_a_header_cannot_hold_or_one_could_guess_are_refused(token):
    with pytest.raises(RecipeError, match="--token"):
        must_be_guarded("127.0.0.1", token, no_auth=False)


def test_a_model_has_the_name_of_its_folder_or_a_given_one(tmp_path):
    folder = tmp_path / "pets"
    folder.mkdir()
    (tmp_path / "a=b").mkdir()
    assert named_sources([str(folder)]) == {"pets": folder}
    assert named_sources([f"{folder}/"]) == {"pets": folder}
    assert named_sources([f"zoo={folder}", str(folder)]) == {"zoo": folder, "pets": folder}
    assert named_sources([f"v1.2={tmp_path}/a=b"]) == {"v1.2": tmp_path / "a=b"}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([], "nothing to serve"),
        (["runs/a", "other/a"], "both be served as a"),
        (["runs/a b"], "NAME=runs/a b"),
        (["/"], "name"),
        (["x" * 65], "name"),
    ],
)
def test_names_that_cannot_stand_in_a_path_are_refused(given, word):
    with pytest.raises(RecipeError, match=word):
        named_sources(given)


def test_a_folder_that_has_an_equals_sign_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a=b").mkdir()
    with pytest.raises(RecipeError, match='"a=b"'):
        named_sources(["a=b"])
    assert named_sources(["ab=a=b"]) == {"ab": Path("a=b")}
