-- The one definition of the deliveries that a mass loss keeps for a person. It is simple enough for the planner to inline, so that a
-- query which names a message reads case_member by an index.
CREATE OR REPLACE VIEW mass_loss_delivery AS
    SELECT m.topic, m.message_id, m.consumer_group, m.case_id
    FROM case_member m JOIN case_file c USING (case_id)
    WHERE c.kind = 'mass_loss' AND m.settled_at IS NULL AND c.closed_at IS NULL AND (c.state = 'open' OR c.decision = 'leave');
COMMENT ON VIEW mass_loss_delivery IS
    'deliveries that a person is asked about as one of a mass loss, or left: no run asks for them or sends them by itself';
