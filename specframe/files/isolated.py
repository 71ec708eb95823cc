"""Python code that others wrote, run in a process with limits of time and memory that can write no file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from tempfile import TemporaryDirectory

from specframe.kernel.errors import InputError

SECONDS = 5
"""Processor time that a piece of code may take."""
MEMORY = 1 << 30
"""Bytes of memory that it may have."""
DONE = 86
"""Exit status of code that came to its end: one that leaves early with status 0 has not."""

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
"""Sets limits of the system first, then a hook that refuses to write, to start processes and to open connections."""


def require_limits() -> None:
    """Raises InputError on a system without limits for processes."""
    if importlib.util.find_spec("resource") is None:
        raise InputError("--run-code needs limits for processes, which this system lacks; use Linux or macOS")


def passes(code: str, *, seconds: int = SECONDS, memory: int = MEMORY) -> bool:
    """Returns whether the code runs to its end without an error, within the limits.

    It runs in a Python of its own (isolated, without installed packages, in an empty temporary folder) that can write
    no byte to a file, start no process and open no connection. That keeps mistakes in; it is no wall against an attack.
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
