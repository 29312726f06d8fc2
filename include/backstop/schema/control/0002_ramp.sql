-- Resends in batches: canary, ramp and ordering keys.
COMMENT ON TABLE resend_batch IS 'Resends that go out in steps: a canary, then a ramp';
