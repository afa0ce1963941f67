"""Observers: each reads one kind of trace that a job leaves, and answers with frozen values; none of them decides anything."""
