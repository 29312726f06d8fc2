"""The console's JSON API under /backstop/api/v1: what the pages of `ui/` show, for any other program as well."""
