"""Notebooks of the pages: executed by a kernel, and shown as Markdown with their outputs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
"""Matches a figure, such as a time, that another machine or another day changes."""
MARK = re.compile(r"(?<=\])\*")
"""Matches the mark of an interval that does not contain 1, as another day's may not be."""
PADDING = re.compile(r"(?<=[ -])[ -]+")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def read(path: Path) -> Any:
    """The notebook in a file."""
    return nbformat.read(path, as_version=4)


def execute(notebook: Any, folder: Path) -> None:
    """Executes a notebook's cells in a folder and keeps their outputs. An error in a cell is raised."""
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    with TemporaryDirectory(prefix="kernel-") as sockets:  # files in place of ports: the tests allow no network
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/k")
        NotebookClient(
            notebook, km=manager, timeout=600, resources={"metadata": {"path": str(folder)}}, record_timing=False
        ).execute(cleanup_kc=True)  # a manager that was handed in is left running otherwise
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _kept(cell.outputs)


def _kept(outputs: list[Any]) -> list[Any]:
    """The outputs without progress and warnings; what was printed in pieces is one, a table needs no text."""
    kept: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.output_type == "stream" and kept and kept[-1].output_type == "stream":
            kept[-1].text += output.text
            continue
        if len(output.get("data", {})) > 1:
            output.data.pop("text/plain", None)
        kept.append(output)
    return kept


def show(notebook: Any) -> str:
    """The page: text as it is, code as blocks, which the tests execute, and what it printed or returned below it."""
    return "\n\n".join(part for cell in notebook.cells for part in _show_cell(cell)) + "\n"


def _show_cell(cell: Any) -> list[str]:
    if cell.cell_type != "code":
        return [cell.source]
    return [f"```python\n{cell.source}\n```", *map(_show_output, cell.outputs)]


def _show_output(output: Any) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "image/png" in data:
        return f'<img class="output" alt="The figure." src="data:image/png;base64,{data["image/png"].strip()}">'
    text = output.get("text") or data["text/plain"]
    return f"```text\n{ESCAPES.sub('', text).rstrip()}\n```"


def outputs(notebook: Any) -> list[list[str]]:
    """The outputs of each code cell, with a sign in place of every figure."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[_compared(output) for output in cell.outputs] for cell in code]


def _compared(output: Any) -> str:
    if "image/png" in output.get("data", {}):
        return "image"
    return PADDING.sub("", NUMBER.sub("#", MARK.sub("", _show_output(output))))


if __name__ == "__main__":  # python docs/notebooks.py NOTEBOOK...: executes them anew, outputs included
    for name in sys.argv[1:]:
        found = read(Path(name))
        with TemporaryDirectory() as work:
            execute(found, Path(work))
        nbformat.write(found, name)
