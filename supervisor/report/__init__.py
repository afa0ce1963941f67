"""Reports to people: terminal, incident card, event log."""
