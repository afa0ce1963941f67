"""What is refused before the agent of a torchrun command is started."""

from __future__ import annotations

import pytest

from supervisor.errors import SuperviseError
from supervisor.launch.early_agent import require_one_endpoint


def test_a_list_of_endpoints_is_refused_where_torch_takes_one() -> None:
    several = ("torchrun", "--nnodes=3", "--rdzv-backend=c10d", "--rdzv-endpoint", "n1:29500,n2:29500,n3:29500", "train.py")
    with pytest.raises(SuperviseError, match=r"--rdzv-endpoint: a list of hosts \(n1:29500,n2") as error:
        require_one_endpoint(several, {})
    assert error.value.exit_code == 64
    with pytest.raises(SuperviseError):
        require_one_endpoint(("torchrun", "train.py"), {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "n1,n2"})
    require_one_endpoint(("torchrun", "--rdzv-backend=of-my-own", "--rdzv-endpoint=n1,n2", "train.py"), {})
    require_one_endpoint(("torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500", "train.py", "--hosts=a,b"), {})
    require_one_endpoint(("python", "train.py", "--rdzv-endpoint=n1,n2"), {})
