"""Alerts: model (the events), threads (what is sent), spool (none is lost), sender (sends and retries), one file for each kind of sink."""
