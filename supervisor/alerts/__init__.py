"""Alerts: model (the events), threads (one problem each), spool (none is lost), sender (sends, retries), one file for each kind of sink."""
