"""The simulator: the real core on a simulated disk, network and clock. Every run can be replayed from its
seed.

`python -m testkit.sim 1-200` runs seeds; `python -m testkit.sim 17 --trace` replays one and prints its
events.
"""
