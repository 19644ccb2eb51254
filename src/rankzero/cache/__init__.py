"""What is kept between runs in `machine.cache_root()`: which kinds there are, who uses what, what can go. Standard
library only; knows nothing of what is in the files."""
