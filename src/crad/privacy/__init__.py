"""Differential privacy: what is spent, by which mechanism, and how much noise a target asks for.

Numbers in, numbers out: nothing here knows samples, networks or members.
"""
