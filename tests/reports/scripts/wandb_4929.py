"""wandb/wandb#4929 (2023): a thread that uploads never ends, so a process whose training is over does not leave."""

import threading
import time

from training import Training


def upload() -> None:
    time.sleep(600)


training = Training()
training.run()
if training.rank == 0:
    threading.Thread(target=upload, name="upload").start()
