"""Real peers: identities, the agreement between organisations, and how snapshots travel without a server.

Needs the extra `crad[net]`; nothing outside `crad peer` imports this package.
"""

from __future__ import annotations

from importlib.util import find_spec

from crad.errors import ConfigError, install_hint

_MISSING = [name for name in ("cryptography", "fsspec", "starlette", "uvicorn") if find_spec(name) is None]
if _MISSING:
    raise ConfigError(f"peers on a network need the package {_MISSING[0]}: {install_hint('net')}")
