"""SQL: what the journals say, for people to look at; commands, tokens and the audit trail."""
