"""A plugin of pytest. Hypothesis draws by this run's seed, too, and at the end stands how much was drawn."""

import re
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.draws import ORIGIN, SEED, TALLY, TIMES, is_drawn
from tests.selection import IS_NIGHT

_PREFIX = "drawn: "
"""Start of the names of the properties by which reports count draws"""
_BY_HYPOTHESIS = "examples by Hypothesis"
_Report = Generator[None, pytest.TestReport, pytest.TestReport]

# A busy machine is no failure, and what another run has left in a database is no example. Where CI is set, Hypothesis
# would draw by the name of a test alone
settings.register_profile("icepuffin", deadline=None, database=None, derandomize=False)
settings.load_profile("icepuffin")
# It takes examples from the source of modules that are imported, which depends on the tests before
providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before Hypothesis reads the option."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header() -> str:
    return f"ICEPUFFIN_SEED={SEED} ({ORIGIN})"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    TALLY.counts.clear()
    TALLY.times = TIMES


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> _Report:
    """Counts go with the report to the process that prints, which is another one than the worker."""
    test, was_called = item, call.when == "call"
    if was_called:
        statistics = getattr(test, "hypothesis_statistics", "")
        TALLY.counts[_BY_HYPOTHESIS] += sum(map(int, re.findall(r"- (\d+) passing", statistics)))
        test.user_properties += [(_PREFIX + kind, count) for kind, count in (+TALLY.counts).items()]
    report = yield
    if report.failed and is_drawn(test):
        night = "ICEPUFFIN_NIGHTLY=1 " if IS_NIGHT else ""
        again = f"{night}ICEPUFFIN_SEED={SEED} ICEPUFFIN_DRAWS={TALLY.times} draws the same again"
        report.sections.append(("draws", again))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    laws, modules = Counter[str](), dict[str, Counter[str]]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "call":
                continue
            for name, count in report.user_properties:
                if not name.startswith(_PREFIX):
                    continue
                kind = name.removeprefix(_PREFIX)
                module = "all modules" if kind == _BY_HYPOTHESIS else report.nodeid.split("::")[0]
                laws[module] += 1
                modules.setdefault(module, Counter())[kind] += count
    if not modules:
        return
    terminalreporter.section(f"drawn by ICEPUFFIN_SEED={SEED} ({ORIGIN})")
    for module, counts in sorted(modules.items()):
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
        terminalreporter.write_line(f"{module}: {kinds} in {laws[module]} tests")
