"""Foreign Python code, run in a process with limits of time and memory that cannot write files."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from tempfile import TemporaryDirectory

from specframe.kernel.errors import InputError

SECONDS = 5
"""Limit of processor time for a piece of code, in seconds."""
MEMORY = 1 << 30
"""Limit of memory in bytes."""
DONE = 86
"""Exit status of code that ran to its end; an early exit with status 0 is not one."""

DRIVER = """
import os, resource, sys

code, seconds, memory, done = sys.stdin.read(), *map(int, sys.argv[1:])
sys.argv[1:] = []

def refuse(event, given):
    if event == "open":
        if given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            raise PermissionError("code under test writes no file")
    elif event.startswith(("os.", "shutil.", "subprocess.", "socket.", "ctypes.", "pty.", "signal.")):
        if event not in ("os.listdir", "os.scandir", "os.walk"):
            raise PermissionError(event + " is not for code under test")

limits = {"CPU": seconds, "AS": memory, "FSIZE": 0, "NPROC": 0, "CORE": 0}
for name, value in limits.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
sys.addaudithook(refuse)
try:
    exec(compile(code, "answer", "exec"), {"__name__": "answer"})
except BaseException:
    os._exit(1)
os._exit(done)
"""
"""Sets the system's limits first, then a hook that refuses to write, to start processes and to open connections."""


def require_limits() -> None:
    """Raises InputError on a system without limits for processes."""
    if importlib.util.find_spec("resource") is None:
        raise InputError("--run-code needs limits for processes, which this system lacks; use Linux or macOS")


def passes(code: str, *, seconds: int = SECONDS, memory: int = MEMORY) -> bool:
    """Returns whether the code runs to its end without an error, within the limits.

    It runs in a separate Python (isolated, without installed packages, in an empty temporary folder) that can write no
    byte to a file, start no process and open no connection. This contains mistakes; it is no protection against
    attacks.
    """
    command = [sys.executable, "-I", "-S", "-B", "-c", DRIVER, str(seconds), str(memory), str(DONE)]
    with TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                input=code.encode(errors="replace"),
                cwd=folder,
                env={},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=2 * seconds + 5,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == DONE
