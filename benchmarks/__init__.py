"""What CRAD costs, measured on the machine at hand: `python -m benchmarks`, or `make bench`.

Outside the package on purpose: nothing in `crad` depends on it.
"""
