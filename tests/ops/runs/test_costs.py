"""Costs of runs by the prices of the settings."""

from dataclasses import replace

import pytest

from icepuffin.ops.model import SnapshotId
from icepuffin.ops.runs.costs import CostModel
from icepuffin.ops.theta.theta_report import ThetaEstimate, ThetaOutcome, ThetaReport

GIB = 1 << 30
MODEL = CostModel("EUR", compute_hour=6.0, written_gib=0.5, read_gib=0.25)
ESTIMATE = ThetaEstimate(ThetaOutcome.WRITTEN, bytes_read=8 * GIB, bytes_written=4 * GIB, seconds=1_800.0)
REPORT = ThetaReport("t", SnapshotId(1), None, {}, True, 1, 0, 2 * GIB, 600.0, ThetaOutcome.WRITTEN)


def test_hours_and_gibibytes_have_their_prices() -> None:
    assert MODEL.cost(seconds=3_600, bytes_read=0, bytes_written=0) == pytest.approx(6)
    assert MODEL.cost(seconds=0, bytes_read=GIB, bytes_written=0) == pytest.approx(0.25)
    assert MODEL.cost(seconds=0, bytes_read=0, bytes_written=GIB) == pytest.approx(0.5)
    assert CostModel("EUR").cost(seconds=3_600, bytes_read=GIB, bytes_written=GIB) == 0


def test_the_cost_of_a_run_counts_the_bytes_that_it_was_expected_to_read() -> None:
    """Executors do not count what they read."""
    assert MODEL.report_costs(REPORT) == {"cost/EUR": pytest.approx(1 + 1)}
    assert MODEL.report_costs(replace(REPORT, estimate=ESTIMATE)) == {"cost/EUR": pytest.approx(1 + 1 + 2)}
