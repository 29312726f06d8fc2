"""Adopts the flow `reconcile` from the installed package; airflow looks for the words dag and airflow."""

from backstop.dags.reconcile import dag

__all__ = ["dag"]
