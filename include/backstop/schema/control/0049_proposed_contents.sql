-- How large a proposed content is, and its digest: whoever approves it is shown both, also by a login that reads no contents.
ALTER TABLE proposal
    ADD COLUMN content_bytes integer GENERATED ALWAYS AS (octet_length(content)) STORED,
    ADD COLUMN content_sha256 text GENERATED ALWAYS AS (encode(sha256(content), 'hex')) STORED;
COMMENT ON COLUMN proposal.content_sha256 IS 'in hexadecimal; null: nothing is proposed to be the content, or the proposal has ended';
