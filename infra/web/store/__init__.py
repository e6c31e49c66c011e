"""The database, and what every process with a token to check keeps in it: tokens and the audit trail; no runs."""
