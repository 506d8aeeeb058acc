"""Value of Puffin's property `created-by`: the application and its version."""

from importlib.metadata import version

CREATED_BY = f"icepuffin version {version('icepuffin')}"
