"""What a place has for training and what it lacks, one finding a line. Imports no torch; what torch sees of the devices
is asked of another process."""
