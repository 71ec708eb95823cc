"""The tests that the tutorials ask for, run here; their commands and recipes run in tests/repo."""

import os
import subprocess
import sys

from tests.repo.repository import ROOT, blocks

EXAMPLE = ROOT / "plugins" / "specframe-example"
PARTS = (
    "pyproject.toml",
    "src/specframe_example/__init__.py",
    "src/specframe_example/drafter.py",
    "tests/test_example.py",
)
LINES = 50


def shown(page: str) -> dict[str, str]:
    """The files that a tutorial shows."""
    return {block.title: block.text for block in blocks(ROOT / "docs" / "tutorials" / page) if block.title}


def test_the_example_is_the_first_tutorials_word_for_word():
    texts = {f"specframe-example/{name}": (EXAMPLE / name).read_text(encoding="utf-8") for name in PARTS}
    project = "specframe-example/pyproject.toml"
    texts[project] = texts[project].partition("\n[tool.specframe]")[0]  # that table concerns this repository alone
    assert shown("first-plugin.md") == texts
    assert sum(bool(line.strip()) for text in texts.values() for line in text.splitlines()) < LINES


def test_the_first_drafters_test_passes_and_its_code_is_short(tmp_path):
    files = shown("first-drafter.md")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert sum(bool(line.strip()) for line in files["wren.py"].splitlines()) < LINES
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_wren.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_first_losss_test_passes_and_notices_a_mistake(tmp_path):
    for name, text in shown("first-loss.md").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    loss = (tmp_path / "variation.py").read_text(encoding="utf-8")
    wrong = loss.replace(
        "torch.where(student.mask, distance, 0).sum() / student.mask.sum().clamp(min=1)", "distance.mean()"
    )
    assert wrong != loss
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    test = (tmp_path / "test_variation.py").read_text(encoding="utf-8")
    (tmp_path / "test_wrong.py").write_text(test.replace("from variation", "from wrong"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_variation.py", "test_wrong.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout[-2000:]
    assert "masked predictions have a part in the loss" in done.stdout
