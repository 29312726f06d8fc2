"""After a database was restored from a backup: brings the others' knowledge back into it, before anything is sent again."""
