"""Real servers as our own children, on the loopback and over one folder each: PostgreSQL, Valkey, brokers, Airflow."""
