"""Peers, what they publish, how it travels, and the loop of rounds, the same in a simulation and between
organisations.
"""
