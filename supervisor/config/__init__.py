"""Settings, and the files that users bring: their trust and signatures."""
