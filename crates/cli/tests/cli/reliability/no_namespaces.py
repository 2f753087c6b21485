#!/usr/bin/env python3
"""Runs a program as a container runtime's default seccomp profile does: without namespaces and mounts.

A stand-in for the profile of a real node, for tests. Usage: no_namespaces.py PROGRAM [ARGUMENT...]
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# Numbers of system calls: x86_64, aarch64.
CALLS = {"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)}
CLONE, CLONE3 = (56, 220), 435
CLONE_NEW = 0x7E020000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, IF_EQUAL, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NUMBER_OFFSET, FIRST_ARGUMENT_OFFSET = 0, 16


def instructions():
    column = 1 if platform.machine() == "aarch64" else 0
    yield LOAD, 0, 0, NUMBER_OFFSET
    for numbers in CALLS.values():
        yield IF_EQUAL, 0, 1, numbers[column]
        yield RETURN, 0, 0, FAIL | errno.EPERM
    yield IF_EQUAL, 0, 1, CLONE3
    yield RETURN, 0, 0, FAIL | errno.ENOSYS
    yield IF_EQUAL, 0, 3, CLONE[column]
    yield LOAD, 0, 0, FIRST_ARGUMENT_OFFSET
    yield IF_ANY_BIT, 0, 1, CLONE_NEW
    yield RETURN, 0, 0, FAIL | errno.EPERM
    yield RETURN, 0, 0, ALLOW


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


program = [struct.pack("HBBI", *instruction) for instruction in instructions()]
code = ctypes.create_string_buffer(b"".join(program))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
    sys.exit("no_new_privs is refused")
profile = Filter(len(program), ctypes.addressof(code))
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(profile), 0, 0) != 0:
    sys.exit("the filter is refused")
os.execvp(sys.argv[1], sys.argv[1:])
