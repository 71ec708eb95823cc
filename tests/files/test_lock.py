import os
import signal
import subprocess
import sys
import threading

import pytest

from specframe.files.folders import NAME, made, writing
from specframe.kernel.errors import InputError

HOLD = """
import sys
from pathlib import Path
from specframe.files.folders import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_belongs_to_one_process(tmp_path, holder):
    refused = pytest.raises(InputError, match=f"^another process is writing to {tmp_path}/out; wait .* another --out$")
    with refused, writing(tmp_path / "out"):
        pass
    holder.stdin.close()
    assert holder.wait() == 0
    with writing(tmp_path / "out"):
        pass


def test_the_lock_of_a_killed_process_locks_nothing(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "out" / NAME).exists()
    with writing(tmp_path / "out"):
        pass


def test_blocks_nest_within_a_thread_and_exclude_another(tmp_path):
    found = []

    def other():
        try:
            with writing(tmp_path):
                found.append("both write")
        except InputError as error:
            found.append(str(error))

    with writing(tmp_path):
        with writing(tmp_path):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(found) == 1 and found[0].startswith(f"another process is writing to {tmp_path}")


def test_a_place_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is not a folder"), writing(tmp_path / "file"):
        pass


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path):
    with pytest.raises(InputError, match="no model"), made(tmp_path / "runs" / "one"):
        raise InputError("no model")
    assert not (tmp_path / "runs").exists()


def test_a_folder_with_a_file_stays_and_so_does_one_that_was_there(tmp_path):
    with made(tmp_path / "runs" / "one"):
        (tmp_path / "runs" / "one" / "run.json").touch()
    (tmp_path / "empty").mkdir()
    with made(tmp_path / "empty"):
        pass
    assert (tmp_path / "runs" / "one" / "run.json").exists() and (tmp_path / "empty").is_dir()
