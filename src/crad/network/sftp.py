"""SFTP for a store: only hosts whose key is known, and no question that waits for ever."""

from __future__ import annotations

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

CONNECT_S = 15.0
SILENCE_S = 60.0


class KnownHostFiles(SFTPFileSystem):  # type: ignore[misc]  # a base without types
    """fsspec's SFTP takes any host for the right one; this one asks `known_hosts`, as ssh does.

    Signatures protect what is read there, but not a password that is given to the wrong host.
    """

    def _connect(self) -> None:
        given = dict(self.ssh_kwargs)
        known_hosts = given.pop("known_hosts", None)
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys(known_hosts)
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        limits = {"timeout": CONNECT_S, "banner_timeout": CONNECT_S, "auth_timeout": CONNECT_S}
        self.client.connect(self.host, **{**limits, **given})
        self.ftp = self.client.open_sftp()
        self.ftp.get_channel().settimeout(SILENCE_S)
