"""Airflow finds Backstop's pages and buttons here: in the plugins folder, or by the entry point of the installed package."""

from backstop.airflow.plugin import BackstopPlugin

__all__ = ["BackstopPlugin"]
