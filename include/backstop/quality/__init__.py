"""Data checks: what a step staged or wrote is audited before the next step builds on it."""

from backstop.quality.audit import SuiteResult, run_suite
from backstop.quality.suites import SUITES

__all__ = ["SUITES", "SuiteResult", "run_suite"]
