"""Recompute, from the ledger of injected faults and from the tables alone, whether everything came out right.

It imports nothing of Backstop (two drivers and the standard library only), so that one mistake cannot be on both sides of the
comparison. `python -I checker PLACES.json LEDGER_FOLDER`, where `checker` is this folder, prints its findings as JSON and ends
with 1 when something is wrong. PLACES holds `control` and, by name, `producers` and `groups` (URIs of PostgreSQL or MariaDB), `topics`
(topic -> the groups that owe its messages) and the folder `received`, where the messages of alerts are that came.
"""
