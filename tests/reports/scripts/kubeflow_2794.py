"""kubeflow/trainer#2794 (2025): what has the master's port takes each connection and closes it; and one rank that meets by env://.

`PORT`: serve such a port until killed. Nothing: be a rank.
"""

from __future__ import annotations

import datetime as dt
import socket
import sys

if sys.argv[1:]:
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
        while True:
            server.accept()[0].close()
else:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=2))
