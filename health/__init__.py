"""What a node's hardware, system and network say of themselves, and what follows from it. Usable alone; `supervise doctor` shows it."""
