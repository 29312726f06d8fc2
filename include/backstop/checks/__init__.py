"""Data checks: what a step staged or wrote is audited before the next step builds on it."""

from backstop.checks.run import SuiteResult, run_suite, run_suites
from backstop.checks.suites import SUITES

__all__ = ["SUITES", "SuiteResult", "run_suite", "run_suites"]
