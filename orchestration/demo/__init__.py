"""`icepuffin demo`: everything once, for real, on one machine."""

from orchestration.demo.run import run_demo

__all__ = ["run_demo"]
