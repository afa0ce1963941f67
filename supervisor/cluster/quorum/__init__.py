"""A register (supervisor/cluster/register.py) by majority of a fixed list of hosts: CASPaxos."""
