"""A job that does what a test tells it, and keeps a book of its processes: ``python -I -S puppet.py BOOK [TRAIT …]``.

Every process of it writes a line ``ATTEMPT ROLE PID START`` into BOOK and then reads the whole book: whichever of two
comes later sees the other, so a process of one attempt that lives beside one of another, or a second main process, is
written down as ``doubled``, however short the moment was. Orders come through the pipe ``BOOK.ATTEMPT``; each one that
is not the end is answered with a line ``did``. A ``stubborn`` one ignores SIGTERM, a ``parent`` has two more processes.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.abspath(__file__).rsplit(os.sep, 4)[0])

import signal

from pipeline.agent.attempts.identity import Process, alive, identify

BOOK = sys.argv[1]
PROGRESS = os.environ.get("DRAFTDECK_PROGRESS", "")
ATTEMPT = os.path.basename(os.path.dirname(PROGRESS))


def main() -> None:
    """Follow orders until one of them is the end."""
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "parent" in sys.argv:
        fork("child")
        fork("escapee")
    pipe = f"{BOOK}.{ATTEMPT}"
    if not os.path.exists(pipe):
        os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR)) as orders:
        enter("main")
        for order in orders:
            obey(order.split())
            write(BOOK, "did")


def obey(order: list[str]) -> None:
    """Do one thing: exit N, signal N, child, escapee, stubborn, progress N, result N."""
    verb, number = order[0], int(order[1]) if len(order) > 1 else 0
    if verb == "exit":
        os._exit(number)
    elif verb == "signal":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
    elif verb == "progress":
        write(PROGRESS, f'{{"progress": {{"at": 1, "phase": "work", "done": {number}}}}}')
    elif verb == "result":
        write(PROGRESS, f'{{"result": {{"at": 1, "records": {number}, "message": "{number} records"}}}}')
    else:
        fork(verb)


def fork(role: str) -> None:
    """Leave a process behind: a child, or one that has escaped from session and parent. It is in the book by then."""
    entered, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        os.read(entered, 1)
        os.close(entered)
        if role != "child":
            os.waitpid(child, 0)
        return
    os.closerange(3, tell)
    if role != "child":
        os.setsid()
        if os.fork():
            os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if role == "stubborn" else signal.SIG_DFL)
    enter(role)
    os.close(tell)
    while True:
        signal.pause()


def enter(role: str) -> None:
    """Write this process into the book, then look for one that must not be there."""
    me = identify(os.getpid())
    assert me is not None
    mine = f"{ATTEMPT} {role} {me.pid} {me.start}"
    write(BOOK, mine)
    with open(BOOK) as book:
        lines = [line.split() for line in book.read().splitlines()]
    for attempt, other, pid, start in (line for line in lines if len(line) == 4):
        strange = attempt != ATTEMPT or (role == other == "main" and int(pid) != me.pid)
        if strange and alive(Process(int(pid), int(start))):
            write(BOOK, f"doubled: {mine} beside {attempt} {other} {pid} {start}")


def write(path: str, line: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, line.encode() + b"\n")
    os.close(handle)


if __name__ == "__main__":
    main()
