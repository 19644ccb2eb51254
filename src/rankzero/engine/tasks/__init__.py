"""What is learned from a row: one file a task, under the name that it has in spec/tasks.py."""
