"""`icepuffin demo`: everything once, for real, on one machine."""

from icepuffin.orchestration.demo.demo_run import run_demo

__all__ = ["run_demo"]
