"""The benchmark of kernels: what it refuses, and which graphs it builds."""

import numpy as np
import pytest

from benchmarks import kernels


def test_a_k_wider_than_every_beam_is_refused_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.main(["--k", "10", "100", "--widths", "20", "70", "--systems", ""])
    assert "no width is 100 or more" in capsys.readouterr().err
