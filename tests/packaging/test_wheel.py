"""The built wheel: all of our files, nothing else, and no conflict with supervisord in the same `supervisor/` folder."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.commands import COMMANDS, HIDDEN
from tests.packaging.environments import DEADLINE_S, PIP, ROOT, Environment, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
COMMAND = "supervise_command.py"  # a file, not a package


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without network."""
    if not (ROOT / "LICENSE").exists() or not (ROOT / PROJECT["project"]["readme"]).exists():
        pytest.fail("the metadata names a readme and a licence that are not there")
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.process
def test_the_wheel_holds_our_packages_and_nothing_else(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {"supervisor", "checkpointing"} <= set(PACKAGES) <= {"supervisor", "checkpointing", "health", COMMAND}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == set(PACKAGES)
    assert len(tops) == len(PACKAGES) + 2


@pytest.mark.process
def test_the_wheel_holds_every_file_of_theirs(names: set[str]) -> None:
    there = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not re.match(r"[^/]+\.(dist-info|data)/", name)} == there | {COMMAND}
    assert [name.partition(".data/")[2] for name in names if ".data/" in name] == ["data/share/man/man1/supervise.1"]
    needed = {"supervisor/guardian/__main__.py", "supervisor/instrument/sitecustomize.py", "supervisor/agent/__main__.py"}
    assert needed <= there


@pytest.mark.process
def test_the_man_page_names_every_command_and_needs_what_a_build_needs_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/supervise.1")]
        page = archive.read(name).decode()
    named = [path for path, (module, _) in COMMANDS.items() if module and path not in HIDDEN]
    assert [path for path in named if f"\\fBsupervise {path}\\fR".replace("-", r"\-") not in page] == []
    assert all(f".SH {title}\n" in page for title in ("SYNOPSIS", "OPTIONS", "COMMANDS", "EXIT STATUS", "ENVIRONMENT", "FILES"))
    needed = [re.split(r"\W", requirement)[0] for requirement in PROJECT["build-system"]["requires"]]
    code = (
        "import sys, sysconfig; sys.path[:0] = ['.', 'bench']; import man_page; man_page.man_page(); site = sysconfig.get_path('purelib')\n"
        "print(*{n.partition('.')[0] for n, m in sys.modules.items() if (getattr(m, '__file__', '') or '').startswith(site)})"
    )
    imported = run(sys.executable, "-c", code, cwd=ROOT).split()
    needed.append("typing_extensions")  # msgspec imports it where it is there
    assert {name for name in imported if not name.startswith("_")} <= set(needed)


@pytest.mark.process
def test_an_editable_install_needs_the_build_backend_alone(tmp_path: Path) -> None:
    """`pip install -e .` without network: not even click is there yet."""
    code = "import sys; sys.modules['click'] = None; from hatchling.build import build_editable; print(build_editable(sys.argv[1]))"
    built = run(sys.executable, "-c", code, tmp_path, cwd=ROOT).split()[-1]
    assert [name for name in zipfile.ZipFile(tmp_path / built).namelist() if name.endswith(".1")] == []


@pytest.mark.process
def test_the_wheel_says_what_it_is(wheel: Path, names: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        generator = archive.read(f"{info}/WHEEL").decode()
    assert (metadata["Name"], metadata["License-Expression"]) == ("torch-supervise", "Apache-2.0")
    assert f"{info}/licenses/LICENSE" in names
    assert "supervise = supervise_command:main" in entry_points
    assert "Root-Is-Purelib: true" in generator
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in needed if re.match(r"torch\b|nvidia-(?!ml-py)", line)], "pip would replace the job's torch, or fetch CUDA"
    assert "torch>=2.6; extra == 'torch'" in metadata.get_all("Requires-Dist", [])


@pytest.fixture(scope="module")
def supervisord_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of supervisord, from the package index."""
    directory = tmp_path_factory.mktemp("supervisord")
    done = subprocess.run(  # noqa: S603 -- as above
        [*PIP, "download", "--no-deps", "--only-binary=:all:", "--retries=0", "--timeout=15", "-d", str(directory), "supervisor==4.3.0"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    wheels = list(directory.glob("supervisor-*.whl"))
    if not wheels:
        pytest.skip(f"pip cannot download supervisor, which needs a package index: {done.stderr.strip()[-200:]}")
    return wheels[0]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    root = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", root)
    (site,) = root.glob("lib/python*/site-packages")
    # a directory named in a .pth file adds its packages, but its own .pth files, the editable install's among them, are not read
    (site / "zz-dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return Environment(root)


def works(environment: Environment) -> None:
    """See that each of our processes starts from the installed files."""
    assert "Usage" in environment.run("supervise", "--help")
    unit = (ROOT / "supervisor/cli/systemd/units/supervise@.service").read_text()
    assert environment.run("supervise", "print", "systemd", "supervise@.service") == unit
    where = environment.run("python", "-P", "-c", "import supervisor.core.machine as d, checkpointing.select; print(d.__file__)")
    assert where.startswith(str(environment.root))
    output = environment.run("supervise", "--state-dir", environment.root / "state", "--", "python", "-c", "print(6 * 7)")
    assert re.search(r"^42$", output, re.MULTILINE)


def works_of_theirs(environment: Environment) -> None:
    assert environment.run("supervisord", "--version").strip() == "4.3.0"
    assert "supervisorctl" in environment.run("supervisorctl", "--help")


@pytest.mark.slow
@pytest.mark.process
def test_the_wheel_works_alone(environment: Environment, wheel: Path) -> None:
    environment.install(wheel)
    works(environment)


@pytest.mark.slow  # installs
@pytest.mark.process
def test_the_wheel_works_without_torch_and_names_its_source(environment: Environment, wheel: Path) -> None:
    environment.hide_torch()
    environment.install(wheel)
    works(environment)
    alone = {"PATH": f"{environment.bin}:/usr/bin:/bin"}
    command = [environment.bin / "supervise", "--state-dir", environment.root / "state", "--", "torchrun", "train.py"]
    done = subprocess.run(command, cwd=environment.root, env=alone, capture_output=True, text=True, timeout=DEADLINE_S, check=False)  # noqa: S603 -- as above
    assert done.returncode == 64
    assert "no such command: torchrun" in done.stderr
    assert "https://pytorch.org/get-started/locally" in done.stderr


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "order", [lambda wheel, other: (wheel, other), lambda wheel, other: (other, wheel)], ids=["ours_first", "ours_last"]
)
def test_beside_supervisord(
    environment: Environment, wheel: Path, supervisord_wheel: Path, order: Callable[[Path, Path], tuple[Path, Path]]
) -> None:
    environment.install(*order(wheel, supervisord_wheel))
    works(environment)
    works_of_theirs(environment)
    # whichever of the two goes takes the package file along; the other's modules stay
    run(*PIP, "--python", environment.bin / "python", "uninstall", "-y", "supervisor")
    works(environment)
