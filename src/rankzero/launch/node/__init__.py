"""The node command, PID 1 of every pod: finds its place, meets the other nodes, starts workers, owns signals and exit.

torch's elastic agent is not used: it leaves with 1 on SIGTERM whatever the workers did, numbers nodes by arrival and
not by the rank that the platform gave them, and ends workers 30 s after a stop request, which is too short to save.
"""
