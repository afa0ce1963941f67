"""From the text of logs to evidence: signatures, tracebacks and launchers' footers."""
