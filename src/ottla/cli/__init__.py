"""The command line, one file per command. `main.py` finds the command and imports only its module."""
