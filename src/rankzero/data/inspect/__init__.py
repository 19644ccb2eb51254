"""Looking at data before it is trained: every row checked, counted, shown and reported."""
