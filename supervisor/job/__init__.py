"""One job: its names, directories, clock and link to systemd, which every other part may import."""
