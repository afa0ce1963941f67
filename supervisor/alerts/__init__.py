"""Alerts: model (what one contains), outbox (so that none is lost), sender (so that none delays the job), one file per sink."""
