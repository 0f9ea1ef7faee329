"""Use what a run trained: raw inputs in, answers out; as Python objects and as files."""
