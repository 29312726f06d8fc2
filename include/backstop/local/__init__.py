"""The whole system on one machine: embedded servers, Airflow, and the traffic that the demo and the tests
use."""
