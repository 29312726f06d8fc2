"""The demo's shop: producers and consumer groups as processes of their own, and the ledger of what was done to them."""
