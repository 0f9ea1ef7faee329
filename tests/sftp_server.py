"""An SFTP server on loopback for one folder, one user and one password."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from pathlib import Path

import paramiko

FLAGS_BY_MODE = {os.O_RDONLY: "rb", os.O_WRONLY: "wb", os.O_RDWR: "r+b"}


class SftpServer:
    """Listens from the beginning of a `with` block to its end."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root, self.password = root, secrets.token_hex(8)
        self._key = paramiko.ECDSAKey.generate()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[paramiko.Transport] = []

    @property
    def known_host(self) -> str:
        """Its line in `known_hosts`."""
        return f"[127.0.0.1]:{self.port} {self._key.get_name()} {self._key.get_base64()}\n"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *fault):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for transport in self._open:
            transport.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                transport = paramiko.Transport(line)
                self._open.append(transport)
                transport.add_server_key(self._key)
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files, root=self.root)
                with contextlib.suppress(paramiko.SSHException, EOFError):  # who does not like our key hangs up
                    transport.start_server(server=Login(self.password))


class Login(paramiko.ServerInterface):  # type: ignore[misc]  # a base without types
    """One user with one password, who may open sessions."""

    def __init__(self, password: str) -> None:
        self._password = password

    def check_auth_password(self, username, password):
        is_right = (username, password) == ("crad", self._password)
        return paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED


class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]
    """The files below one folder."""

    def __init__(self, server, *args, root: Path, **more):
        super().__init__(server, *args, **more)
        self._root = root

    def _at(self, path: str) -> str:
        return f"{self._root}{self.canonicalize(path)}"

    def list_folder(self, path):
        return self._told(lambda: [_described(entry) for entry in os.scandir(self._at(path))])

    def stat(self, path):
        return self._told(lambda: paramiko.SFTPAttributes.from_stat(os.stat(self._at(path))))

    def lstat(self, path):
        return self._told(lambda: paramiko.SFTPAttributes.from_stat(os.lstat(self._at(path))))

    def open(self, path, flags, attr):
        mode = FLAGS_BY_MODE[flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)]

        def opened():
            handle = paramiko.SFTPHandle(flags)
            handle.readfile = handle.writefile = os.fdopen(os.open(self._at(path), flags, 0o600), mode)
            return handle

        return self._told(opened)

    def remove(self, path):
        return self._done(lambda: os.remove(self._at(path)))

    def rename(self, oldpath, newpath):
        if os.path.exists(self._at(newpath)):
            return paramiko.SFTP_FAILURE  # as OpenSSH does it
        return self._done(lambda: os.rename(self._at(oldpath), self._at(newpath)))

    def posix_rename(self, oldpath, newpath):
        return self._done(lambda: os.replace(self._at(oldpath), self._at(newpath)))

    def mkdir(self, path, attr):
        return self._done(lambda: os.mkdir(self._at(path)))

    def rmdir(self, path):
        return self._done(lambda: os.rmdir(self._at(path)))

    @staticmethod
    def _told(call):
        try:
            return call()
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno)

    def _done(self, call):
        answer = self._told(call)
        return paramiko.SFTP_OK if answer is None else answer


def _described(entry: os.DirEntry[str]) -> paramiko.SFTPAttributes:
    return paramiko.SFTPAttributes.from_stat(entry.stat(follow_symlinks=False), entry.name)
