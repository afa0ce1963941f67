"""The time ledger of a job: at every moment a run is in exactly one state (docs/reference/time-ledger.md). Pure: no clock, no file."""
