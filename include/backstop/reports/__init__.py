"""What people and scrapers read of the control database: every query here only reads."""
