"""Adopts the flow `resend` from the installed package; airflow looks for the words dag and airflow."""

from backstop.dags.resend import dag

__all__ = ["dag"]
