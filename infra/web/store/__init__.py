"""The database, and the tables of every process that checks tokens: tokens and the audit trail; no runs."""
