"""The command line, one file a command. `main.py` finds the command; a command's imports happen when it runs."""
