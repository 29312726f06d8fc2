"""Which duties have something to do, seen from outside a run, cheaply and again and again."""
