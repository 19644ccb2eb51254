"""Commands about data, one file each. They import the data side inside the commands."""
