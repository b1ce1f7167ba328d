"""Commands that run the processes of a cell, and that look at one."""
