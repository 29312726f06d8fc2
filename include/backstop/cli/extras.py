"""Which extra of backstop-mq brings a module that is not installed."""

from __future__ import annotations

_EXTRAS = {
    "platform": (
        "click",
        "cryptography",
        "duckdb",
        "jsonschema",
        "prometheus_client",
        "pyarrow",
        "pydantic",
        "re2",
        "referencing",
        "rich",
        "typer",
        "yaml",
    ),
    "quality": ("great_expectations", "sqlalchemy"),
    "spark": ("pandas", "pyspark"),
    "alerts": ("apprise",),
    "mysql": ("pymysql",),
    "mongodb": ("pymongo", "bson"),
    "otlp": ("opentelemetry",),
    "airflow": ("airflow",),
}


def extra_of(module: str | None) -> str | None:
    """None for a module that no extra brings."""
    top = (module or "").partition(".")[0]
    return next((extra for extra, modules in _EXTRAS.items() if top in modules), None)


def install(extra: str) -> str:
    """The command that installs it."""
    return f'pip install "backstop-mq[{extra}]"'
