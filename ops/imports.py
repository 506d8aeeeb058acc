"""The extra that brings a package which is missing."""

_EXTRAS = {
    "dagster": "dagster",
    "dagster_postgres": "ui",
    "dagster_webserver": "ui",
    "sqlglot": "sql",
    "Stemmer": "text",
    "langchain_core": "langchain",
    "mcp": "mcp",
    "pyspark": "spark",
    "dagster_pyspark": "spark",
    "s3fs": "s3",
    "obstore": "gcs,adls",
}


def remedy(error: ModuleNotFoundError) -> str:
    """The command that installs what is missing; empty where no extra brings it."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    return f"pip install 'icepuffin[{extra}]'" if extra else ""
