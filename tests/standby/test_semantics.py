"""A rank out of a standby cannot be told from one that started cold, but for what differences.py lists."""

from __future__ import annotations

import re
import shutil
import venv
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.standby.differences import DIFFERENCES
from tests.standby.libraries import SCRIPTS, TAIL
from tests.standby.ways import PROBES, ROOT, Case, Job, assert_equal, differences

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process

MANY = ("json", "decimal", "unittest.mock", "logging", "concurrent.futures.thread", "multiprocessing.pool", "asyncio", "xml.dom.minidom")
WAYS = re.findall(r'^    "(.+?)": ', (PROBES / "exits.py").read_text(), re.MULTILINE)

CASES = {
    "interpreter": Case(("-u", "interpreter.py", *MANY)),
    "interpreter, buffered": Case(("interpreter.py", *MANY)),
    "interpreter, on a terminal": Case(("interpreter.py", "json"), terminal=True),
    "interpreter, with options": Case(
        ("-W", "error::FutureWarning", "-X", "probe=1", "-X", "dev", "-OO", "-B", "interpreter.py", "decimal")
    ),
    "interpreter, with variables": Case(
        ("interpreter.py", "decimal"),
        env={
            "PYTHONWARNINGS": "ignore::UserWarning,default::DeprecationWarning",
            "PYTHONIOENCODING": "latin-1:backslashreplace",
            "PYTHONHASHSEED": "7",
            "PYTHONUTF8": "1",
            "PYTHONFAULTHANDLER": "1",
            "LC_ALL": "C.UTF-8",
            "PYTHONSAFEPATH": "",
            "TZ": "Asia/Tokyo",
        },
    ),
    "interpreter, with a path": Case(("interpreter.py", "decimal"), env={"PYTHONPATH": "/of/the/user:/and/another"}),
    "interpreter, without the script's directory": Case(("-P", "interpreter.py", "json"), env={"PYTHONPATH": str(PROBES)}),
    "interpreter, by an absolute path": Case(("-u", str(PROBES / "interpreter.py"), "json"), cwd=ROOT),
    "interpreter, by a relative path": Case(("-u", "./standby/probes/../probes/interpreter.py", "json"), cwd=ROOT / "tests"),
    "kernel": Case(("-u", "kernel.py"), stdin="a text\n"),
    "kernel, with long arguments": Case(
        ("kernel.py", "a" * 3000, "", "ünicode", "with space", "--a=b"), env={"LONG": "v" * 60000, "EMPTY": ""}
    ),
    "kernel, on a terminal": Case(("kernel.py",), terminal=True),
    "a module": Case(("-u", "-m", "package.module", "--word", "-m")),
    "a package": Case(("-u", "-m", "package", "word")),
    "a package, by a path": Case(("-u", "package", "word"), env={"PYTHONPATH": str(PROBES)}),
    "the exit": Case(("-u", "at_exit.py")),
    "the exit, with a function registered first": Case(("-u", "at_exit.py", "before")),
    "random numbers": Case(("-u", "random_state.py")),
    "output": Case(("-u", "output.py", "2000")),
    "output, buffered": Case(("output.py", "2000")),
    "output, on a terminal": Case(("output.py", "20"), terminal=True),
    "children by os.fork": Case(("-u", "children.py", "os.fork")),
    "children by subprocess": Case(("-u", "-W", "ignore", "-X", "utf8", "children.py", "subprocess")),
    "children by fork": Case(("-u", "children.py", "fork")),
    "children by spawn": Case(("-u", "children.py", "spawn")),
    "children by forkserver": Case(("-u", "children.py", "forkserver")),
}
QUICK = ("kernel",)
QUICK_SCRIPTS = ("sets a variable that a library reads",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else (pytest.mark.slow,)) for name in CASES])
def test_a_warm_start_equals_a_cold_start(name: str, job: Job) -> None:
    assert_equal(job, CASES[name])


@pytest.mark.slow
def test_unseeded_random_numbers_are_new_each_time(job: Job) -> None:
    case = CASES["random numbers"]
    job.recorded(case)
    runs = [job.cold(case), job.warm(case), job.warm(case)]
    for name in (name for name in runs[0].observed if name.startswith("unseeded.") and name != "unseeded.address"):
        assert len({run.observed[name] for run in runs}) == len(runs), name


@pytest.mark.slow
def test_every_way_to_end_is_the_same(job: Job) -> None:
    case = Case(("-u", "exits.py", WAYS[0]))
    job.recorded(case)
    deviations = []
    for way in WAYS:
        this = replace(case, args=("-u", "exits.py", way))
        colds = [job.cold(this), job.cold(this)]
        warm = job.warm(case, then=this)
        deviations += [f"{way}: {line}" for line in [*differences(colds, warm), *([warm.cold] if warm.cold else [])]]
    assert len(WAYS) > 30
    assert not deviations, "\n".join(deviations)


def _script(place: Path, text: str, python: str) -> Case:
    place.mkdir(exist_ok=True)
    shutil.copy(PROBES / "observed.py", place)
    (place / "script.py").write_text(text + TAIL)
    return Case(("-u", "script.py"), cwd=place, python=python)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK_SCRIPTS else (pytest.mark.slow,)) for name in SCRIPTS])
def test_libraries_cannot_tell_them_apart(name: str, job: Job, interpreter: str, tmp_path: Path) -> None:
    text, way, *also = SCRIPTS[name]
    also.append("files.uneven-0")  # for the next standby
    case = _script(tmp_path / "script", text, interpreter)
    job.recorded(case)
    colds = [job.cold(case), job.cold(case)]
    warm = job.warm(case)
    deviations = differences(colds, warm, tuple(also))
    assert not deviations, "\n".join([warm.cold, *deviations])
    seen = "cold" if warm.cold else "anew" if "uneven-0" in warm.files else "warm"
    assert way in {"any", seen}, [seen, warm.cold, warm.files.get("uneven-0")]


def _edit(place: Path) -> None:
    (place / "script.py").write_text("print('edited')\n" + (place / "script.py").read_text())


def _shadow(place: Path) -> None:
    (place / "lib_original.py").write_text("VALUE = 'of the user'\n")


def _shadow_by_a_package(place: Path) -> None:
    (place / "lib_original").mkdir()
    (place / "lib_original" / "__init__.py").write_text("VALUE = 'of the user'\n")


APPORT = "# Debian\ntry:\n    import apport_python_hook\nexcept ImportError:\n    pass\nelse:\n    apport_python_hook.install()\n"
#: Modules that Python runs before the script, and that have no effect.
INERT = {
    "empty": "",
    "a comment": "# Empty sitecustomize.py to avoid a dangling symlink\n",
    "a docstring, constants and pass": '"""Nothing yet."""\n...\npass\npass\n17\n',
    "Debian's and Ubuntu's": APPORT,
}
ACTING = {
    "a variable": "import os\nos.environ['PROBE_SETTING'] = 'of sitecustomize'\n",
    "a constant with a name": "import sys\nVALUE = 1\n",
    "another handler of crashes": APPORT.replace("apport_python_hook", "crash_hook"),
    "more after apport's": APPORT + "import os\nos.environ['PROBE_SETTING'] = 'of sitecustomize'\n",
    "a syntax error": "def\n",
}


def _site(place: Path, text: str = ACTING["a variable"]) -> None:
    (place / "sitecustomize.py").write_text(text)


def _install_apport(place: Path) -> None:
    (place / "apport_python_hook.py").write_text("import os\n\n\ndef install():\n    os.environ['PROBE_SETTING'] = 'of apport'\n")


def _customized(place: Path, interpreter: str, text: str) -> Case:
    case = _script(place, "import os\nimport lib_original\nprint(os.environ.get('PROBE_SETTING'))\n", interpreter)
    _site(place, text)
    return replace(case, env={"PYTHONPATH": str(place)})


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name.startswith("a ") else ()) for name in INERT])
def test_a_sitecustomize_without_an_effect_leaves_restarts_warm(name: str, job: Job, interpreter: str, tmp_path: Path) -> None:
    assert_equal(job, _customized(tmp_path / "script", interpreter, INERT[name]))


@pytest.mark.slow
def test_a_sitecustomize_without_an_effect_in_a_virtual_environment_leaves_restarts_warm(job: Job, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (next(tmp_path.glob("venv/lib/python*/site-packages")) / "sitecustomize.py").write_text(APPORT)
    assert_equal(job, _script(tmp_path / "script", "import decimal\n", str(tmp_path / "venv/bin/python")))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "a variable" else (pytest.mark.slow,)) for name in ACTING])
def test_a_sitecustomize_with_an_effect_makes_restarts_cold_and_is_named(name: str, job: Job, interpreter: str, tmp_path: Path) -> None:
    case = _customized(tmp_path / "script", interpreter, ACTING[name])
    job.recorded(case)
    warm = job.warm(case)
    assert not differences([job.cold(case), job.cold(case)], warm)
    assert re.search(r"sitecustomize(\.py)? runs before the script$", warm.cold)


@pytest.mark.slow
def test_apport_that_is_installed_is_an_effect(job: Job, interpreter: str, tmp_path: Path) -> None:
    case = _customized(tmp_path / "script", interpreter, APPORT)
    _install_apport(case.cwd)
    job.recorded(case)
    warm = job.warm(case)
    assert not differences([job.cold(case), job.cold(case)], warm)
    assert warm.cold == "refused: your own sitecustomize runs before the script"


CHANGES: dict[str, tuple[Callable[[Path], None], Callable[[Path], None], str]] = {
    "the script is edited": (lambda _: None, _edit, "changed"),
    "a module of the user hides a library": (_shadow, lambda _: None, ""),
    "a module of the user comes to hide a library": (lambda _: None, _shadow, "lib_original"),
    "a package of the user comes to hide a library": (lambda _: None, _shadow_by_a_package, "lib_original"),
    "the user has a sitecustomize": (_site, lambda _: None, "sitecustomize"),
    "the user gets a sitecustomize": (lambda _: None, _site, "sitecustomize.py runs before the script"),
    "a sitecustomize comes to have an effect": (lambda place: _site(place, ""), _site, "sitecustomize.py was changed"),
    "a sitecustomize without an effect comes": (lambda _: None, lambda place: _site(place, APPORT), ""),
    "apport comes": (lambda place: _site(place, APPORT), _install_apport, "sitecustomize.py runs before the script"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_a_standby_waits_is_not_missed(name: str, job: Job, interpreter: str, tmp_path: Path) -> None:
    """Where a standby would be another process than a cold start it is not used; in each case the outcome is a cold start's."""
    at_first, later, why = CHANGES[name]
    case = _script(tmp_path / "script", "import lib_original, lib_variable\n", interpreter)
    case = replace(case, env={"PYTHONPATH": str(case.cwd)})
    at_first(case.cwd)
    job.recorded(case)
    warm = job.warm(case, before=lambda: later(case.cwd))
    colds = [job.cold(case), job.cold(case)]
    deviations = differences(colds, warm)
    assert not deviations, "\n".join([warm.cold, *deviations])
    assert why in warm.cold


@pytest.mark.slow
def test_a_module_that_comes_to_hide_a_library_in_a_directory_of_the_scripts_is_not_missed(
    job: Job, interpreter: str, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    case = _script(tmp_path / "script", f"import sys\nsys.path.insert(0, {str(mine)!r})\nimport lib_original\n", interpreter)
    job.recorded(case)
    warm = job.warm(case, before=lambda: _shadow(mine))
    colds = [job.cold(case), job.cold(case)]
    assert not differences(colds, warm)
    assert "lib_original" in warm.cold


@pytest.mark.slow
def test_an_edited_library_is_imported_anew(job: Job, interpreter: str, tmp_path: Path) -> None:
    case = _script(tmp_path / "script", "import lib_package\n", interpreter)
    job.recorded(case)
    module = next((tmp_path / interpreter).parents[1].glob("lib/python*/site-packages/lib_package/part.py"))
    before = module.read_text()
    try:
        warm = job.warm(case, before=lambda: module.write_text("VALUE = 'edited in place'\n") and None)
        colds = [job.cold(case), job.cold(case)]
    finally:
        module.write_text(before)
    assert not differences(colds, warm)


OTHER_COMMANDS = {
    "arguments": (Case(("-u", "script.py", "--resume", "a path"), cwd=PROBES), False),
    "options": (Case(("script.py",), cwd=PROBES), True),
    "a variable": (Case(("-u", "script.py"), cwd=PROBES, env={"PROBE_SETTING": "another"}), True),
    "a place among the ranks": (Case(("-u", "script.py"), cwd=PROBES, env={"RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "3"}), False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_COMMANDS)
def test_another_command_is_obeyed(name: str, job: Job, interpreter: str, tmp_path: Path) -> None:
    other, cold = OTHER_COMMANDS[name]
    case = _script(tmp_path / "script", "import lib_original, lib_variable, lib_main\nlib_main.VALUE = 0\n", interpreter)
    then = replace(case, args=other.args, env=other.env)
    job.recorded(case)
    warm = job.warm(case, then=then)
    deviations = differences([job.cold(then), job.cold(then)], warm)
    assert not deviations, "\n".join([warm.cold, *deviations])
    assert bool(warm.cold) == cold, warm.cold


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lib_rank", "lib_variables"])
def test_a_library_that_reads_its_rank_while_it_is_imported_reads_the_new_one(
    name: str, job: Job, interpreter: str, tmp_path: Path
) -> None:
    case = _script(tmp_path / "script", f"import {name}\nprint({name}.VALUE)\n", interpreter)
    then = replace(case, env={"RANK": "1", "WORLD_SIZE": "3"})
    job.recorded(case)
    warm = job.warm(case, then=then)
    assert not differences([job.cold(then), job.cold(then)], warm)
    assert "RANK is another" in warm.cold


def test_the_page_has_all_differences() -> None:
    page = (ROOT / "docs" / "explanation" / "restarts.md").read_text(encoding="utf-8")
    assert [row.subject for row in DIFFERENCES if f"| {row.subject} | {row.why} |" not in page] == []
