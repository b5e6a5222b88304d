"""The command line, one file per command. `main.py` finds the command; a command's imports happen when it runs."""
