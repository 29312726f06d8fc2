-- The watch says when released keys of an ordered group wait for a consumer. One rule more, whatever others there are.
DO $$
DECLARE
    known text;
BEGIN
    SELECT pg_get_expr(conbin, conrelid) INTO STRICT known FROM pg_constraint
    WHERE conrelid = 'watch_finding'::regclass AND conname = 'watch_finding_rule_check';
    ALTER TABLE watch_finding DROP CONSTRAINT watch_finding_rule_check;
    EXECUTE 'ALTER TABLE watch_finding ADD CONSTRAINT watch_finding_rule_check CHECK (' || known || ' OR rule = '
        || quote_literal('release_stands') || ')';
END
$$;
