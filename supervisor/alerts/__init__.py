"""Alerts: model (the contents), outbox (none is lost), delivery (sends and retries; the job never waits), one file per sink."""
