"""The commands that read or act on a job by its name: `ls`, `status`, `why`, `logs`, `stop`."""
