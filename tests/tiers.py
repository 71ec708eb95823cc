"""The tiers of the suite, a pytest plugin: `pytest` runs the quick one, --rest what that leaves out, --all every test.

Quick are all tests but those marked `full` and those that slow.txt lists, and of the cases of those marked `sampled`
the first and, each day, another tenth. Of the cases of one test after its first, the rest runs a part each day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from zlib import crc32

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings

DAYS = 10
"""The number of days in which the quick tier runs every case of a sampled test."""

REST = (5,)
"""The days, before a case's turn in the quick tier, on which the rest runs it."""

SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").splitlines())
"""The tests that took two seconds and more of a busy CPU when all were measured, by their names."""

settings.register_profile("quick", max_examples=15, deadline=None)
settings.register_profile("all", max_examples=30, deadline=None)
settings.register_profile("release", max_examples=100, deadline=None)


def examples(factor: int) -> settings:
    """Returns the settings of a property that needs `factor` times the examples of the tier's profile."""
    return settings(max_examples=factor * settings().max_examples)


@dataclass(frozen=True)
class Tier:
    """A tier on one day: `name` is quick, rest or all."""

    name: str
    day: date

    def includes(self, item: pytest.Item) -> bool:
        """Returns whether the tier runs a test; slow and GPU tests run wherever `-m` selects them."""
        if self.name == "all" or any(map(item.get_closest_marker, ("slow", "gpu"))):
            return True
        days = (crc32(item.nodeid.encode()) - self.day.toordinal()) % DAYS
        if item.get_closest_marker("full") or item.nodeid in SLOW:
            return self.name == "rest" and (not _is_later_case(item) or days in (0, *REST))
        if not _is_later_case(item) or item.get_closest_marker("sampled") is None:
            return self.name == "quick"
        return days in REST if self.name == "rest" else days == 0


def _is_later_case(item: pytest.Item) -> bool:
    """Returns whether it is a case of its test after the first."""
    return hasattr(item, "callspec") and any(item.callspec.indices.values())


def tier_of(config: pytest.Config) -> Tier:
    """Returns the tier that the command line asks for: all, for tests that it names one by one."""
    named = config.option.tier == "quick" and any("::" in argument for argument in config.args)
    return Tier("all" if named else config.option.tier, date.fromisoformat(config.option.day))


def day(text: str) -> str:
    """Returns a day as the workers of pytest-xdist can be sent it; raises ValueError where it is none."""
    return date.fromisoformat(text).isoformat()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers", "tiers of the suite")
    for name, what in (
        ("all", "run every test"),
        ("rest", "run what the quick tier leaves out, of a test's cases a part each day"),
    ):
        group.addoption(f"--{name}", dest="tier", action="store_const", const=name, default="quick", help=what)
    today = date.today().isoformat()
    group.addoption("--day", type=day, default=today, metavar="YYYY-MM-DD", help="the day to run the quick tier of")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("hypothesis_profile", None):
        settings.load_profile("quick" if config.option.tier == "quick" else "all")


def pytest_report_header(config: pytest.Config) -> str:
    tier = tier_of(config)
    return f"tier: {tier.name}, as of --day {tier.day}"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Prints what the tests that draw recipes have drawn, all processes together."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    drawn = [found for each in reports for name, found in getattr(each, "user_properties", ()) if name == "recipe"]
    if drawn:
        from specframe.testing.coverage import summary

        terminalreporter.write_line(f"recipes, as of --day {tier_of(terminalreporter.config).day}: {summary(drawn)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = tier_of(config)
    chosen = [item for item in items if tier.includes(item)]
    config.hook.pytest_deselected(items=[item for item in items if not tier.includes(item)])
    items[:] = chosen
