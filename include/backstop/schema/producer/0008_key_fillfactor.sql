-- Each stub enters this index again when it is settled and when it is closed. Pages built over rows that are there (a restore, REINDEX) or
-- filled in the order of the key were nine tenths full, so that closing their stubs split each of them, after a search for dead rows
-- that found none. Pages that producers fill in any other order are half full already, and stay so. No writer waits for this
-- statement. It leaves existing pages as they are: the next REINDEX INDEX CONCURRENTLY makes room in them.
ALTER INDEX message_stub_pkey SET (fillfactor = 50);
