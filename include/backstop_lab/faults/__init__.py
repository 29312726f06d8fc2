"""Breaks stores and brokers on purpose, exactly, and writes into the ledger what it did."""
