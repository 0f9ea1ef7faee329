"""The paper's experiments and our own studies: a plan of runs, and their tables beside the published figures."""
