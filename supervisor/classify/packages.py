"""Names the package to install for a missing module.

Only well-known modules: `pip install NAME` with the name of an unknown one may install a stranger's package, and the module may be a file
of the program's own. Modules whose package of that name on PyPI is another one (apex, clip, mmcv) are left out.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Packages named otherwise than their module, by module. Source: the packages' pages on pypi.org, read 2026-11-24.
_NAMED_OTHERWISE = MappingProxyType(
    {
        "PIL": "pillow",
        "attr": "attrs",
        "bs4": "beautifulsoup4",
        "cv2": "opencv-python",
        "dateutil": "python-dateutil",
        "dotenv": "python-dotenv",
        "faiss": "faiss-cpu",
        "flash_attn": "flash-attn --no-build-isolation",
        "git": "gitpython",
        "huggingface_hub": "huggingface-hub",
        "hydra": "hydra-core",
        "pynvml": "nvidia-ml-py",
        "pytorch_lightning": "pytorch-lightning",
        "skimage": "scikit-image",
        "sklearn": "scikit-learn",
        "torch_geometric": "torch-geometric",
        "yaml": "pyyaml",
        "zmq": "pyzmq",
    }
)
#: Packages named like their module.
_NAMED_ALIKE = frozenset(
    {
        *("accelerate", "albumentations", "bitsandbytes", "datasets", "decord", "deepspeed", "diffusers", "einops", "evaluate", "fire"),
        *("ftfy", "gymnasium", "h5py", "imageio", "jsonlines", "kornia", "librosa", "lightning", "lmdb", "loguru", "matplotlib", "monai"),
        *("mpi4py", "nltk", "numba", "numpy", "omegaconf", "pandas", "peft", "psutil", "pyarrow", "pycocotools", "pydantic"),
        *("regex", "requests", "rich", "safetensors", "scipy", "seaborn", "sentencepiece", "soundfile", "spacy", "tensorboard"),
        *("tensorboardX", "tiktoken", "timm", "tokenizers", "torch", "torchaudio", "torchmetrics", "torchvision", "tqdm", "transformers"),
        *("trl", "triton", "ujson", "wandb", "webdataset", "xformers"),
    }
)


#: The build of a package that fits torch. Source: the table of https://github.com/pytorch/vision#installation, read 2026-11-24.
_FITS_TORCH = MappingProxyType(
    {"torchvision": ("pip install --no-deps 'torchvision==0.N.*'", "N is torch's minor version plus 15 (torch 2.5: 0.20)")}
)


def install_text(facts: Mapping[str, str]) -> str:
    """Return the command that installs the package in a verdict's facts, and where; "" for an unknown package.

    Python names the first part that is missing: of `sklearn.future` the package itself is there, in another version.
    """
    module = facts.get("module", "")
    package = _NAMED_OTHERWISE.get(module) or (module if module in _NAMED_ALIKE else "")
    line, condition = (f"pip install {package}", "") if package else _FITS_TORCH.get(facts.get("misfit", ""), ("", ""))
    return f"`{line}` in the job's environment{f', where {condition}' if condition else ''}" if line else ""
