"""Says (pure) why a person's answer does not fit a letter as it is now."""

from __future__ import annotations

from backstop.config.policy import Policy
from backstop.model.records import LogState
from backstop.triage.decide.decide import (
    REASONS,
    Facts,
    busy_until,
    cannot_send,
    is_done,
    refused_too_often,
)

IS_KEPT = "its ordering key is parked in a case of its own; decide that one"


def why_not(action: str, facts: Facts, policy: Policy) -> str | None:
    """Why this answer does not fit a letter of which something is left to do, as the end of a sentence; null: it fits."""
    log = facts.log
    if (
        log is not None
        and log.state != LogState.PARKED
        and busy_until(log, facts.as_of, policy) is not None
    ):
        return "a consumer is working on it now, or touched it a moment ago"
    if facts.stub is not None and facts.stub.attempt_token is not None:
        return "a send of it is under way"
    if action == "discard":
        return None
    if is_done(facts):
        return "the group's log says that its id is done, with another content: nothing can be sent under this id any more"
    # A broken letter may name its delivery all the same: what is sent is the stub's content, not the letter's.
    if facts.unaddressable not in (None, "invalid"):
        return f"nothing can be sent for dead letters that {REASONS[facts.unaddressable].says}"
    if (reason := cannot_send(facts, policy)) is not None:
        return f"nothing can be sent for dead letters that {REASONS[reason].says}"
    if log is not None and log.state == LogState.PARKED:
        return IS_KEPT
    assert facts.stub is not None
    if refused_too_often(facts.stub, policy):
        return "the broker refused it too often: fix the cause and raise max_refusals in the policy"
    if facts.asked is not None:
        return facts.asked
    return None
