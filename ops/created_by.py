"""Who wrote a file, as Puffin's property `created-by` wants it: the application and its version."""

from importlib.metadata import version

CREATED_BY = f"icepuffin version {version('icepuffin')}"
