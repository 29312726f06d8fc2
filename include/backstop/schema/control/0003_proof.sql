-- Proofs of a window.
COMMENT ON TABLE run IS 'One execution of one duty';
