"""Warm pods: files of this machine brought to pods that wait, commands in all of them, what their GPUs do."""
