"""The step of `.ci/run` that builds the site fails on a warning."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.repo.repository import ROOT

STEP = ".ci/docs --site-dir"
NAVIGATION = "site_name: pages\nvalidation: {nav: {omitted_files: warn}}\nnav: [index.md]\n"


@pytest.mark.parametrize("extra", [(), ("missing.md",)], ids=["all pages", "a page that is not in the navigation"])
def test_a_warning_fails_the_build(extra: tuple[str, ...], tmp_path: Path) -> None:
    assert f"step {STEP} " in (ROOT / ".ci" / "run").read_text(encoding="utf-8"), "the test runs another step than CI"
    (tmp_path / "docs").mkdir()
    for page in ("index.md", *extra):
        (tmp_path / "docs" / page).write_text("# Page\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(NAVIGATION, encoding="utf-8")
    built = subprocess.run(
        [ROOT / ".ci" / "docs", "--config-file", tmp_path / "mkdocs.yml", "--site-dir", tmp_path / "site"],
        capture_output=True,
        text=True,
    )
    assert (built.returncode == 0) is (not extra), built.stdout
    assert all(page in built.stdout for page in extra)


def test_llms_txt_lists_the_pages(generators, tmp_path: Path) -> None:
    outline = generators("outline").Outline()
    for title, url, meta in (("Home", "", {"description": "What it is."}), ("Bench", "howto/bench/", {})):
        outline.add(SimpleNamespace(title=title, url=url, meta=meta))
    outline.write({"site_name": "specframe", "site_description": "Drafts.", "site_dir": str(tmp_path)})
    written = (tmp_path / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert written == ["# specframe", "", "> Drafts.", "", "- [Bench](howto/bench/)", "- [Home](.): What it is."]
    assert outline.lines == [], "a site that is built again is listed anew"
