"""alan-turing-institute/autocast#381 (2026): after the last step one rank leaves, and the other waits for it in a collective.

The last rank waits in a barrier; with `--fail save` it fails in a last save of its own instead.
"""

import torch.distributed as dist
from training import Training

training = Training()
training.parser.add_argument("--waits", type=int, default=1)
training.parser.add_argument("--fail", default="barrier")
training.run()
if dist.get_rank() == training.options.waits:
    if training.options.fail == "save":
        raise OSError("the last export: the server does not know this model")
    dist.barrier()
