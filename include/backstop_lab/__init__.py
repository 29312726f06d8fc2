"""The laboratory, never shipped: the whole system on one machine, traffic, faults, and a checker of what became of it."""
