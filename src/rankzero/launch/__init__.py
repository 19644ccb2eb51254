"""Starting, watching and stopping the processes of a run. No torch; nothing of training."""
