"""The module in which Dagster's `dg` finds the components of icepuffin."""

from icepuffin.orchestration.component import IcepuffinTableComponent

__all__ = ["IcepuffinTableComponent"]
