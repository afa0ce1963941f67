"""Which package to install for a module that is missing.

Only well-known modules: `pip install NAME` with the name of an unknown one may install a stranger's package, and the module may be a file
of the program's own. Modules whose package of that name on PyPI is another one (apex, clip, mmcv) are left out.
"""

from __future__ import annotations

from types import MappingProxyType

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


def install_line(module: str) -> str:
    """Return the command that installs the package of a missing module; "" if the module is none of the known ones.

    Python names the first part that is missing: of `sklearn.future` the package itself is there, in another version.
    """
    package = _NAMED_OTHERWISE.get(module) or (module if module in _NAMED_ALIKE else "")
    return f"pip install {package}" if package else ""
