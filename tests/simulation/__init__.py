"""The protocol between members, simulated: the real exchanges over a virtual clock and a network in memory.

A schedule is a number. It says who is honest and who is not, when members start, are killed, cut off or late, and what
the dishonest ones do; the same number gives the same run to the last step. After every step the promise is looked at:
whatever a minority does, the honest ones go on, end in time, and took part in every round they could.

    python -m tests.simulation --schedules 10000        # a part of `make fuzz`
    python -m tests.simulation --seed 4711              # one schedule, told step by step
"""
