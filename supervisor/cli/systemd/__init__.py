"""The commands below `supervise systemd`, and the units that they print and install."""
