"""Everything of Backstop that knows Airflow: what the DAGs of `dags/` are wired from, and the pages and buttons in Airflow's UI.

The only package that imports Airflow, and importing one of its modules is cheap, because DAG files do it: drivers, settings
and the duties themselves are imported when a task runs. Each module named after a DAG holds that DAG's tasks.
"""
