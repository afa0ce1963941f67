"""The command that packs what explains an incident, and where each part of it is read."""
