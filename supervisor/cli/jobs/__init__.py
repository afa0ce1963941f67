"""The commands that read or act on a job by its name: `status`, `why`, `logs`."""
