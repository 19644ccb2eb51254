"""The kinds of object that a run can be on a cluster, one file each."""
