"""`--watch`: the report of a run on this machine's own address, while the run goes on.

The thread of the run makes the page, and only when somebody is looking; the server's thread hands out bytes.
"""

from crad.report.live.watch import Watch

__all__ = ["Watch"]
