"""Takes back what dead workers left: expired leases, and the stuck idempotency records of other programs."""
