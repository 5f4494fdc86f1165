"""Runs a command on a pseudo-terminal and talks with it: terminal.py SCRIPT COMMAND...

A script line is `wait TEXT` (fails after 20 s without it) or `send TEXT` (with escapes, \\x03 for Ctrl-C). What
`wait` has matched is not matched again. Prints what the terminal showed; exits with the command's status."""
import os
import pty
import select
import sys
import time

script, command = sys.argv[1], sys.argv[2:]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(command[0], command)

shown, seen = b"", 0


def read(seconds):
    """More of what the terminal shows; False at its end."""
    global shown
    if not select.select([fd], [], [], seconds)[0]:
        return True
    try:
        data = os.read(fd, 65536)
    except OSError:  # Linux: the other end is closed
        return False
    shown += data
    return bool(data)


def finish(status, message=""):
    sys.stdout.buffer.write(shown + message.encode())
    sys.exit(status)


for line in open(script):
    verb, _, text = line.rstrip("\n").partition(" ")
    data = text.encode().decode("unicode_escape").encode("latin-1")
    if verb == "send":
        time.sleep(0.3)  # as people do: the program is asleep in its read by then
        os.write(fd, data)
        continue
    until = time.monotonic() + 20
    while (at := shown.find(data, seen)) < 0:
        if time.monotonic() > until or not read(0.1):
            os.kill(pid, 9)
            finish(99, f"\nno {text!r}\n")
    seen = at + len(data)
until = time.monotonic() + 20
while read(0.1) and time.monotonic() < until:
    pass
if time.monotonic() >= until:
    os.kill(pid, 9)
finish(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
