"""Where the clients of a round are run: here, in this process, one after the other."""
