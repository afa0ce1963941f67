"""Alerts: model (what one contains), outbox (so that none is lost), delivery (sends and retries, without delay for the job), one file per sink."""
