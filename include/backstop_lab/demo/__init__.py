"""The demo's story: a stage, its scenario of faults, the person who is asked, and the last page."""
