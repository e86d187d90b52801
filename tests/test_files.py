"""Files written whole or not at all, and held by one process at a time."""

import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from supple import files
from supple.errors import SuppleError


def test_a_file_is_held_by_one_at_a_time(tmp_path):
    with (
        files.locked(tmp_path / "lock", wait=False),
        pytest.raises(BlockingIOError),
        files.locked(tmp_path / "lock", wait=False),
    ):
        pass
    with files.locked(tmp_path / "lock", wait=False):
        pass


WINDOWS = """
import sys, types
sys.modules["fcntl"] = None  # as where there is none
import supple.training.state, supple.training.feature_cache
held = set()
def locking(handle, mode, count):
    import os
    key = os.fstat(handle).st_ino
    if mode == 0:
        held.discard(key)
    elif key in held:
        raise PermissionError(13, "Permission denied")
    else:
        held.add(key)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_UNLCK=0, LK_NBLCK=2)
"""


def run(tmp_path: Path, program: str) -> None:
    program = WINDOWS + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]


def test_a_run_folder_is_held_for_one_training_where_there_is_no_fcntl(tmp_path):
    run(
        tmp_path,
        """
        from pathlib import Path
        from supple.errors import CheckpointError
        from supple.training.state import claim
        folder = Path(sys.argv[1]) / "run"
        with claim(folder):
            (folder / "kept").write_text("")
            try:
                with claim(folder):
                    raise SystemExit("held twice")
            except CheckpointError as error:
                assert "another training" in error.cause
        with claim(folder):
            pass
        assert [path.name for path in folder.iterdir()] == ["kept"]
        assert not held
        """,
    )


def test_waiting_for_a_lock_goes_on_until_it_is_free_where_there_is_no_fcntl(tmp_path):
    run(
        tmp_path,
        """
        import threading, time
        from pathlib import Path
        from supple.files import locked
        path, order = Path(sys.argv[1]) / "lock", []
        def other():
            with locked(path):
                order.append("other")
        with locked(path):
            thread = threading.Thread(target=other)
            thread.start()
            time.sleep(0.3)
            order.append("first")
        thread.join()
        assert order == ["first", "other"]
        """,
    )


def test_without_any_way_to_lock_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    with pytest.raises(SuppleError, match="neither fcntl nor msvcrt"), files.locked(tmp_path / "lock"):
        pass


def test_folders_that_cannot_be_synced_do_not_stop_a_write(tmp_path, monkeypatch):
    windows = SimpleNamespace(name="nt", O_RDONLY=0, open=lambda *_: pytest.fail("opened a folder"))
    monkeypatch.setattr(files, "os", windows)
    files._sync_folder(tmp_path)
