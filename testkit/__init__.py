"""Test tools: the simulator (`sim/`), the fuzzer (`fuzz/`) and the checkers of histories (`checkers/`). Not
part of the wheel.
"""
