"""What tests of and with ottla stand on: the simulator (`sim/`) and the checkers of histories (`checkers/`)."""
