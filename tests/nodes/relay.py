"""A slow line, as ssh's ProxyCommand: `relay.py HOST PORT SECONDS`. Bytes arrive SECONDS later,
in both directions, as many of them as are sent. For kernels without `tc qdisc … netem`."""

import collections
import os
import selectors
import socket
import sys
import time


def main() -> None:
    host, port, delay = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    line = socket.create_connection((host, port))
    far = line.fileno()
    to = {0: far, far: 1}
    late: collections.deque[tuple[float, int, bytes]] = collections.deque()
    chooser = selectors.DefaultSelector()
    for source in to:
        os.set_blocking(source, True)
        chooser.register(source, selectors.EVENT_READ)
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        for key, _ in chooser.select(wait):
            data = os.read(key.fd, 65536)
            late.append((time.monotonic() + delay, to[key.fd], data))
            if not data:
                chooser.unregister(key.fd)
        while late and late[0][0] <= time.monotonic():
            _, target, data = late.popleft()
            if not data:
                return
            while data:
                data = data[os.write(target, data):]


try:
    main()
except OSError:
    sys.exit(255)
