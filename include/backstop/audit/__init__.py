"""The daily audit: asks every database whether what must always hold does hold, and tells people where it does not."""
