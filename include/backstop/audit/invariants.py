"""What must always hold, across all databases: each invariant with its sentence. Pure.

The same sentences head the data checks of the suite `audit`; a test holds the two together.
"""

from __future__ import annotations

INVARIANTS: dict[str, str] = {
    "exhausted_delivery_has_case": "every delivery that a run of the day found EXHAUSTED is before a person, or was",
    "case_has_alert": "every case that waits for a person, or was opened on the day, has an alert",
    "alert_was_told": "no alert that somebody wants waits for long",
    "letters_acknowledged": "every page of dead letters that was stored was acknowledged to its broker",
    "letters_decided": "no dead letter stays undecided for long: it is replayed, discarded, waits until a time or for a person",
    "replay_has_request": "every dead letter that is being replayed, or was on the day, has its request",
    "discard_has_proof": "a machine discards a dead letter only with a proof that nothing was left to do",
    "causes_count_letters": "a cause's count is the number of its stored dead letters",
    "discard_is_honoured": "nothing was sent to a group after a person discarded its delivery",
    "decisions_are_whole": "no entry of the log of decisions was changed, taken away or put in between",
    "requests_end": "no request stays claimed for long after its claim's deadline",
    "withdrawals_end": "no withdrawal of a message is left half done",
    "runs_end": "no open run has been silent for long",
    "progress_grows": "within one epoch no offset of a group went back, unless a REGRESSION is recorded",
    "counts_add_up": "of every promoted run of the day, what was promoted is what was judged, by verdict and in all",
    "duties_ran": "every watched duty over everything succeeded on the day",
    "broken_rows_do_not_grow": "on no day are there many more new broken rows than in the week before",
    "erased_stays_erased": "what was erased on request has not come back with a later dead letter, a restore or an error",
    "erasures_end": "no erasure is left half done",
    "numbers_within_count": "no message of the day was sent more often than numbers were handed out for it",
    "sends_end": "no send is under way whose time is long over",
    "stubs_are_looked_at": "no pending stub has been due for long without being judged, or is due beyond every horizon",
    "withdrawals_are_decisions": "every stub withdrawn on the day is a person's decision, and what was withdrawn stays so",
    "exhausted_stub_has_case": "every exhausted stub is before a person, or was",
    "overdue_stub_has_case": "every stub that is open beyond its overdue horizon is before a person, or was",
    "sent_requests_were_handed_out": "every request that took its number on the day is known to its stub",
    "confirmed_stub_has_logs": "every stub confirmed on the day has the logs of all groups that owed it, where none of its age was purged",
    "leases_end": "no lease that ended long ago is left for the sweep",
    "floor_is_old": "nothing was purged for which a copy may still come",
}
LATE = frozenset(
    {
        "alert_was_told",
        "broken_rows_do_not_grow",
        "causes_count_letters",
        "duties_ran",
        "erased_stays_erased",
        "erasures_end",
        "leases_end",
        "letters_acknowledged",
        "letters_decided",
        "requests_end",
        "runs_end",
        "sends_end",
        "stubs_are_looked_at",
        "withdrawals_end",
    }
)
"""What is late or untidy: a warning. The others mean that something was lost, doubled, forgotten or kept from a person."""
