"""Settings, and the files that users bring: their trust, signatures and plug-ins."""
