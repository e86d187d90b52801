"""Verbs and options completed by the shell, at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supple.cli import SHELLS, VERBS

CODE = """
import sys
from supple.cli import main
status = main([])
heavy = {"torch", "numpy", "PIL"} & set(sys.modules)
assert not heavy, heavy
sys.exit(status)
"""


def completed(*words: str) -> list[str]:
    """What bash is offered for the last of these words, asked as its script asks."""
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_SUPPLE_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env={**os.environ, **asked})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_bash_completes_verbs_and_options_without_torch():
    assert completed("supple", "tr") == ["train"]
    assert sorted(completed("supple", "ex")) == ["export", "extract"]
    assert set(completed("supple", "")) == set(VERBS)
    assert completed("supple", "predict", "runs/x", "--dea") == ["--deadline-ms"]
    assert "--recipes" in completed("supple", "list", "--")
    assert completed("supple", "train", "recipes/po") == []  # bash goes on with files


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_shown(command, shell):
    said = command("--show-completion", shell)
    assert (said.status, said.err) == (0, "")
    assert f"complete_{shell}" in said.out
    assert "supple" in said.out
    assert "_SUPPLE_COMPLETE" not in os.environ


def test_a_shell_that_has_none_is_refused(command):
    command("--show-completion", "tcsh").refused(2, '"tcsh"', "bash, zsh, fish")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_works_in_bash(command, tmp_path):
    (tmp_path / "supple").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m supple "$@"\n')
    (tmp_path / "supple").chmod(0o755)
    script = command("--show-completion", "bash").out
    name = next(line.split("()")[0] for line in script.splitlines() if "()" in line)
    script += f'\nCOMP_WORDS=(supple tr)\nCOMP_CWORD=1\n{name} supple\necho "${{COMPREPLY[@]}}"\n'
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout.strip()) == (0, "train"), done.stderr


def test_bash_completion_is_installed_where_bash_finds_it(tmp_path):
    code = "import shellingham; shellingham.detect_shell = lambda *_: ('bash', '/bin/bash')\n"
    code += "from supple.cli import main; import sys; sys.exit(main(['--install-completion']))"
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "supple" in (tmp_path / ".bashrc").read_text()
    assert any("complete_bash" in path.read_text() for path in Path(tmp_path).rglob("*.sh"))
