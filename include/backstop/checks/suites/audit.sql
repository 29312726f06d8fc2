-- What must hold across all databases, once a day. An audit's run has looked and written down what it found; each check reads
-- the first ids of it.

-- name: every_invariant_was_looked_at: the run looked at each of the invariants below
SELECT wanted.invariant
FROM {batch} AS run
JOIN run AS audit ON audit.run_id = run.run_id AND audit.duty = 'audit'
CROSS JOIN (VALUES
    ('exhausted_delivery_has_case'),
    ('case_has_alert'),
    ('alert_was_told'),
    ('letters_acknowledged'),
    ('letters_decided'),
    ('replay_has_request'),
    ('discard_has_proof'),
    ('causes_count_letters'),
    ('discard_is_honoured'),
    ('decisions_are_whole'),
    ('requests_end'),
    ('withdrawals_end'),
    ('runs_end'),
    ('progress_grows'),
    ('counts_add_up'),
    ('duties_ran'),
    ('broken_rows_do_not_grow'),
    ('erased_stays_erased'),
    ('erasures_end'),
    ('numbers_within_count'),
    ('sends_end'),
    ('stubs_are_looked_at'),
    ('withdrawals_are_decisions'),
    ('exhausted_stub_has_case'),
    ('overdue_stub_has_case'),
    ('sent_requests_were_handed_out'),
    ('confirmed_stub_has_logs'),
    ('leases_end'),
    ('floor_is_old')
) AS wanted (invariant)
LEFT JOIN audit_look AS l ON l.run_id = run.run_id AND l.invariant = wanted.invariant
WHERE l.invariant IS NULL;

-- name: exhausted_delivery_has_case: every delivery that a run of the day found EXHAUSTED is before a person, or was
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'exhausted_delivery_has_case';

-- name: case_has_alert: every case that waits for a person, or was opened on the day, has an alert
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'case_has_alert';

-- name: alert_was_told: no alert that somebody wants waits for long
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'alert_was_told';

-- name: letters_acknowledged: every page of dead letters that was stored was acknowledged to its broker
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'letters_acknowledged';

-- name: letters_decided: no dead letter stays undecided for long: it is replayed, discarded, waits until a time or for a person
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'letters_decided';

-- name: replay_has_request: every dead letter that is being replayed, or was on the day, has its request
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'replay_has_request';

-- name: discard_has_proof: a machine discards a dead letter only with a proof that nothing was left to do
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'discard_has_proof';

-- name: causes_count_letters: a cause's count is the number of its stored dead letters
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'causes_count_letters';

-- name: discard_is_honoured: nothing was sent to a group after a person discarded its delivery
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'discard_is_honoured';

-- name: decisions_are_whole: no entry of the log of decisions was changed, taken away or put in between
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'decisions_are_whole';

-- name: requests_end: no request stays claimed for long after its claim's deadline
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'requests_end';

-- name: withdrawals_end: no withdrawal of a message is left half done
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'withdrawals_end';

-- name: runs_end: no open run has been silent for long
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'runs_end';

-- name: progress_grows: within one epoch no offset of a group went back, unless a REGRESSION is recorded
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'progress_grows';

-- name: counts_add_up: of every promoted run of the day, what was promoted is what was judged, by verdict and in all
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'counts_add_up';

-- name: duties_ran: every watched duty over everything succeeded on the day
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'duties_ran';

-- name: broken_rows_do_not_grow: on no day are there many more new broken rows than in the week before
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'broken_rows_do_not_grow';

-- name: erased_stays_erased: what was erased on request has not come back with a later dead letter, a restore or an error
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'erased_stays_erased';

-- name: erasures_end: no erasure is left half done
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'erasures_end';

-- name: numbers_within_count: no message of the day was sent more often than numbers were handed out for it
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'numbers_within_count';

-- name: sends_end: no send is under way whose time is long over
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'sends_end';

-- name: stubs_are_looked_at: no pending stub has been due for long without being judged, or is due too late for any run
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'stubs_are_looked_at';

-- name: withdrawals_are_decisions: every stub withdrawn on the day is a person's decision, and what was withdrawn stays so
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'withdrawals_are_decisions';

-- name: exhausted_stub_has_case: every exhausted stub is before a person, or was
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'exhausted_stub_has_case';

-- name: overdue_stub_has_case: every stub that is open beyond its overdue horizon is before a person, or was
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'overdue_stub_has_case';

-- name: sent_requests_were_handed_out: every request that took its number on the day is known to its stub
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'sent_requests_were_handed_out';

-- name: confirmed_stub_has_logs: every stub confirmed on the day has the logs of all groups that owed it, where none of its age was purged
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'confirmed_stub_has_logs';

-- name: leases_end: no lease that ended long ago is left for the sweep
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'leases_end';

-- name: floor_is_old: nothing was purged for which a copy may still come
SELECT f.place, f.subject
FROM {batch} AS run
JOIN audit_finding AS f USING (run_id)
WHERE f.invariant = 'floor_is_old';
