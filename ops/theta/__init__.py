"""Theta sketches of a snapshot: counted per data file, united, registered as its standard statistics."""

from typing import TYPE_CHECKING

from icepuffin.ops.imports import lazy_exports

if TYPE_CHECKING:
    from icepuffin.ops.theta.columns import SketchedColumn, choose_columns, is_enabled
    from icepuffin.ops.theta.errors import ThetaError, UnsketchableColumnError
    from icepuffin.ops.theta.ndv import read_ndv
    from icepuffin.ops.theta.theta_estimate import estimate_theta_sketches
    from icepuffin.ops.theta.theta_materialization import count_theta_sketches
    from icepuffin.ops.theta.theta_report import ColumnNdv, ThetaEstimate, ThetaOutcome, ThetaReport, ThetaStatistics
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "columns": "SketchedColumn choose_columns is_enabled",
            "errors": "ThetaError UnsketchableColumnError",
            "theta_estimate": "estimate_theta_sketches",
            "theta_materialization": "count_theta_sketches",
            "ndv": "read_ndv",
            "theta_report": "ColumnNdv ThetaOutcome ThetaEstimate ThetaReport ThetaStatistics",
        },
    )

__all__ = [
    "ColumnNdv",
    "SketchedColumn",
    "ThetaError",
    "ThetaEstimate",
    "ThetaOutcome",
    "ThetaReport",
    "ThetaStatistics",
    "UnsketchableColumnError",
    "choose_columns",
    "count_theta_sketches",
    "estimate_theta_sketches",
    "is_enabled",
    "read_ndv",
]
