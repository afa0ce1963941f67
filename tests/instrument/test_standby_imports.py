"""What a standby imports in advance: what the script had no part in. Small libraries stand in for torch, in a user's site-packages."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian.standby import READY, REFUSED
from supervisor.observe.ranks import heartbeats
from tests.support.few import few, few_rows
from tests.support.standbys import FOLDER, RECORD, Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

#: Printed by every script as its first line, before it imports anything: what was imported in advance of the test's libraries, of which
#: nothing is in sys.modules yet.
LOADED = (
    "import sys; gates = sys.modules['_supervise_shim'].instrument._watcher.gates; "
    "print(sorted(name for name in (*sys.modules, *(gates._gates if gates else ())) if name.startswith('lib_')))\n"
    "assert not [name for name in sys.modules if name.startswith('lib_')]\n"
)
NEEDED = "import _socket, ctypes, json, random, threading, warnings, os\n"


class Libraries:
    """Ranks, and a site-packages for their libraries."""

    def __init__(self, folder: Path) -> None:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = folder / "user" / "lib" / version / "site-packages"
        self.site.mkdir(parents=True)
        base = getattr(sys, "_base_executable", sys.executable)  # a virtual environment has no user site
        self.ranks = Ranks(folder, base, PYTHONUSERBASE=str(folder / "user"), PYTHONDONTWRITEBYTECODE="1")

    def prepare(self, script: str, **libraries: str) -> tuple[str, str, list[str]]:
        """Run a script cold, and start its standby; returns its state, its reason or note, and what the cold rank had loaded at its end."""
        for name, text in libraries.items():
            (self.site / f"{name}.py").write_text(text)
        (self.ranks.folder / "train.py").write_text(LOADED + NEEDED + script + RECORD)
        code, _, errors = self.ranks.cold("train.py")
        assert code == 0, errors
        standby = self.ranks.ready("train.py")
        return (
            standby.poll(),
            standby.why or standby.note,
            sorted(name for name in self.ranks.content()["modules"] if name.startswith("lib_")),
        )

    def warm(self) -> list[str]:
        """Run the rank from the standby; returns what was loaded before the script began."""
        code, self.out, self.err = self.ranks.warm("train.py")
        assert code == 0, self.err
        return list(json.loads(self.out.splitlines()[0 if self.out[0] == "[" else -1].replace("'", '"')))


@pytest.fixture
def libraries(tmp_path: Path) -> Iterator[Libraries]:
    libraries = Libraries(tmp_path)
    yield libraries
    libraries.ranks.close()


def test_libraries_are_imported_and_the_scripts_own_modules_are_not(libraries: Libraries) -> None:
    (libraries.ranks.folder / "lib_mine.py").write_text("import lib_b")
    state, why, cold = libraries.prepare("import lib_a, lib_mine", lib_a="", lib_b="")
    assert (state, why) == (READY, "")
    assert cold == ["lib_a", "lib_b", "lib_mine"]
    assert libraries.warm() == ["lib_a", "lib_b"]


def test_modules_come_in_the_order_of_a_cold_start(libraries: Libraries) -> None:
    """Pickle names the first that has an object, the script by multiprocessing's name among them, and caches have keys of pickles."""
    names = ("lib_b", "lib_c", "lib_a", "__mp_main__")
    script = f"import lib_a\nprint([name for name in sys.modules if name in {names}], file=sys.stderr)"
    libraries.prepare(script, lib_a="import lib_b, multiprocessing, lib_c", lib_b="", lib_c="")
    libraries.warm()
    assert libraries.err == libraries.ranks.outputs(1)[1] == "['lib_b', '__mp_main__', 'lib_c', 'lib_a']\n"


@pytest.mark.parametrize(
    ("script", "is_whole"),
    [
        pytest.param("import lib_a", True, marks=pytest.mark.slow),
        ("os.environ['LIB_MODE'] = 'x'\nimport lib_a", True),
        ("if os.environ['SUPERVISE_JOB_ATTEMPT'] == '1':\n    import lib_a", False),
    ],
)
def test_the_record_of_a_rank_that_was_a_standby_is_whole_once_nothing_is_kept_back(
    libraries: Libraries, script: str, *, is_whole: bool
) -> None:
    """What is kept back may turn out to be set to something else, and then the rank makes a record of its own."""
    libraries.prepare(script, lib_a="import os\nmode = os.environ.get('LIB_MODE')")
    libraries.warm()
    (cold,), (warm,) = (heartbeats.read(libraries.ranks.directory(attempt) / "heartbeat") for attempt in (1, 2))
    assert (cold.imported, warm.imported) == (False, is_whole)


def test_a_rank_starts_cold_in_place_also_where_its_directory_is_gone(libraries: Libraries) -> None:
    gone = "attempt, place = (os.environ[f'SUPERVISE_JOB_{name}'] for name in ('ATTEMPT', 'DIR'))\n"
    gone += "if attempt == '2' and os.path.isdir(f'{place}/attempt-0002'): os.rename(f'{place}/attempt-0002', f'{place}/gone')\n"
    script = f"{gone}os.environ['LIB_MODE'] = str(os.getpid())\nimport lib_a\nassert lib_a.mode == os.environ['LIB_MODE']"
    state, why, _ = libraries.prepare(script, lib_a="import os\nmode = os.environ.get('LIB_MODE')")
    assert (state, why) == (READY, "")
    assert libraries.warm() == []
    assert libraries.err == ""


def test_packages_that_are_installed_in_an_environment_on_the_path_are_libraries(libraries: Libraries) -> None:
    """A folder of that name alone is one: modules of any other folder on PYTHONPATH are the script's."""
    folder, other = libraries.ranks.folder / "env" / "site-packages", libraries.ranks.folder / "mine"
    for place, name in ((folder, "lib_shared"), (other, "lib_mine")):
        place.mkdir(parents=True)
        (place / f"{name}.py").write_text("")
    libraries.ranks.variables["PYTHONPATH"] = os.pathsep.join([FOLDER, str(folder), str(other)])
    state, why, cold = libraries.prepare("import lib_a, lib_shared, lib_mine", lib_a="")
    assert (state, why) == (READY, "")
    assert cold == ["lib_a", "lib_mine", "lib_shared"]
    assert libraries.warm() == ["lib_a", "lib_shared"]


def test_a_library_that_reads_a_variable_of_the_script_waits_until_it_is_set(libraries: Libraries) -> None:
    script = "import lib_a\nos.environ['LIB_MODE'] = 'x'\nimport lib_b, lib_c\nassert lib_b.mode == 'x'"
    state, why, _ = libraries.prepare(script, lib_a="", lib_b="import os\nmode = os.environ.get('LIB_MODE')", lib_c="")
    assert (state, why) == (READY, "")
    assert libraries.warm() == ["lib_a", "lib_b", "lib_c"]


def test_a_query_for_a_library_gets_an_answer_and_no_import(libraries: Libraries) -> None:
    script = (
        "os.environ['LIB_MODE'] = 'x'\nimport importlib.util\nassert importlib.util.find_spec('lib_b').origin.endswith('lib_b.py')\n"
        "os.environ['LIB_OTHER'] = 'y'\nimport lib_b\n"
        "assert lib_b.__spec__.loader is not None and not hasattr(lib_b.__spec__.loader, '_gate')"
    )
    both = "import os\nmode = os.environ['LIB_MODE'], os.environ.get('LIB_OTHER')"
    state, why, _ = libraries.prepare(script + "\nassert lib_b.mode == ('x', 'y')", lib_b=both)
    assert (state, why) == (READY, "")
    assert libraries.warm() == ["lib_b"]


@pytest.mark.slow
def test_only_the_modules_before_the_ninth_refusal_are_imported_in_advance(libraries: Libraries) -> None:
    names = [f"lib_{letter}" for letter in "bcdefghijk"]
    script = f"import lib_a\nimport lib_0, {', '.join(names)}, lib_z"
    draws = dict.fromkeys(names, "import random\nvalue = random.random()")
    state, why, _ = libraries.prepare(script, lib_a="", lib_0="", lib_z="", **draws)
    assert (state, why) == (READY, "lib_j and all after it are left to the rank, as were 8 modules before it")
    assert libraries.warm() == ["lib_0", "lib_a"]


def test_a_change_by_a_library_is_not_taken_for_the_scripts(libraries: Libraries) -> None:
    changes = "import os, warnings\nos.environ['LIB_MODE'] = 'x'\nwarnings.simplefilter('ignore', FutureWarning)"
    reads = "import os\nmode = os.environ['LIB_MODE']"
    state, why, _ = libraries.prepare("import lib_a, lib_b\nassert lib_b.mode == 'x'", lib_a=changes, lib_b=reads)
    assert (state, why) == (READY, "")
    assert libraries.warm() == ["lib_a", "lib_b"]


@pytest.mark.parametrize(
    ("change", "word"),
    few_rows(
        [
            ("sys.meta_path.append(type('F', (), {'find_spec': staticmethod(lambda *a: None)})())", "the import hooks"),
            ("import builtins; real = builtins.__import__; builtins.__import__ = lambda *a, **k: real(*a, **k)", "the import hooks"),
            ("sys.settrace(lambda *_: None)", "what traces it"),
            ("sys.setprofile(lambda *_: None)", "what traces it"),
            ("import tracemalloc; tracemalloc.start()", "what traces it"),
        ]
    ),
)
def test_after_a_change_that_every_import_sees_nothing_is_imported_in_advance(libraries: Libraries, change: str, word: str) -> None:
    state, why, _ = libraries.prepare(f"import lib_a\n{change}\nimport lib_b", lib_a="", lib_b="")
    assert (state, why) == (READY, f"the script changes {word}")
    assert libraries.warm() == ["lib_a"]


@pytest.mark.parametrize(
    ("text", "why"),
    few_rows(
        [
            ("import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)", "warns whoever imports it"),
            ("import random\nrandom.random()", "draws random numbers"),
            ("import sys\nif 'decimal' not in sys.modules: raise ImportError", "raises ImportError"),
        ]
    ),
)
def test_a_library_that_draws_random_numbers_warns_or_fails_is_left_to_the_script(libraries: Libraries, text: str, why: str) -> None:
    (libraries.ranks.folder / "decimal.py").write_text("")  # the script's own: never in advance
    state, note, _ = libraries.prepare("import decimal, lib_a, lib_b", lib_a="", lib_b=text)
    assert (state, note) == (READY, f"lib_b ({why}) is left to the rank")
    assert libraries.warm() == ["lib_a"]
    assert libraries.err == libraries.ranks.outputs(1)[1]


def test_an_importer_of_a_library_left_to_the_script_is_left_to_it_too(libraries: Libraries) -> None:
    draws = "import random\nvalue = random.random()"
    state, note, _ = libraries.prepare("import lib_a, lib_b, lib_c", lib_a="", lib_b=draws, lib_c="import lib_b")
    assert (state, note) == (READY, "lib_b (draws random numbers), lib_c (imports lib_b) are left to the rank")
    assert libraries.warm() == ["lib_a"]


@pytest.mark.parametrize(
    "change",
    few(
        [
            "warnings.simplefilter('error')",
            "warnings.filterwarnings('ignore', message='a.c', category=FutureWarning, module='lib')",
            "sys.path.insert(0, '/nowhere')",
            "import logging; logging.basicConfig(level='DEBUG')",
            "os.environ.update(LIB_MODE='x', LIB_OTHER='y'); del os.environ['LIB_MODE']",
            "os.chdir('/')",
        ]
    ),
)
def test_a_change_before_imports_holds_behind_them_too(libraries: Libraries, change: str) -> None:
    """lib_b changes the same things; their order is that of a cold start."""
    shown = "list(map(repr, warnings.filters)), sys.path, logging.root.level, sorted(os.environ), os.getcwd()"
    show = f"import logging\nprint({shown}, file=sys.stderr)"
    both = "import os, sys, warnings\nwarnings.simplefilter('ignore', FutureWarning)\nsys.path.append('/b')\nos.environ['LIB_B'] = '1'"
    state, why, _ = libraries.prepare(
        f"import lib_a\n{change}\nimport lib_b, lib_c, lib_d\n{show}", lib_a="", lib_b=both, lib_c="print('c')", lib_d=""
    )
    assert (state, why) == (READY, "")
    assert libraries.warm() == ["lib_a", "lib_b", "lib_c", "lib_d"]
    assert libraries.err == libraries.ranks.outputs(1)[1]


def test_a_standby_imports_at_a_low_priority_and_waits_at_that_of_the_rank(libraries: Libraries) -> None:
    seen = libraries.ranks.folder / "seen"
    look = f"import os\nopen({str(seen)!r}, 'a').write(f'{{os.getpriority(0, 0)}} {{os.sched_getscheduler(0)}}\\n')"
    assert libraries.prepare("import lib_a", lib_a=look)[0] == READY
    rank, standby = [tuple(map(int, line.split())) for line in seen.read_text().splitlines()]
    assert standby in {(19, rank[1]), (rank[0], os.SCHED_BATCH)}
    pid = libraries.ranks.processes[-1].pid
    assert (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)) == rank


COLLECTIONS = """
import gc, traceback
SEEN = []
gc.callbacks.append(lambda *_: SEEN.extend(frame.name for frame in traceback.extract_stack()))
gc.set_threshold(1, 1, 1)
"""


def test_no_garbage_is_collected_during_the_hand_over(libraries: Libraries) -> None:
    seen = "'_take_over' in lib_a.SEEN, '<module>' in lib_a.SEEN"
    script = f"import gc, lib_a\ngc.callbacks.clear()\nprint(gc.isenabled(), {seen}, file=sys.stderr)"
    assert libraries.prepare(script, lib_a=COLLECTIONS)[0] == READY
    libraries.warm()
    assert libraries.err.split() == ["True", "False", "True"]


def test_the_output_of_the_imports_is_printed_by_the_rank(libraries: Libraries) -> None:
    noisy = "import ctypes, os, sys\nprint('python')\nctypes.CDLL(None).puts(b'C')\nos.system('echo child >&2')"
    assert libraries.prepare("import lib_a", lib_a=noisy)[0] == READY
    assert libraries.warm() == ["lib_a"]
    assert sorted(libraries.out.splitlines()[:-1]) == ["C", "python"]
    assert libraries.err == "child\n"


@pytest.mark.parametrize(
    ("text", "why"),
    few_rows(
        [
            ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "starts a thread"),
            ("import sys\nif 'lib_z' not in sys.modules: import lib_y", "loads lib_y, which"),
            ("print('x' * 300000)", "print too much"),
        ]
    ),
)
def test_a_standby_that_is_not_what_the_rank_would_be_refuses(libraries: Libraries, text: str, why: str) -> None:
    (libraries.ranks.folder / "lib_z.py").write_text("")
    state, reason, _ = libraries.prepare("import lib_z, lib_a", lib_a=text, lib_y="")
    assert state == REFUSED
    assert why in reason


def test_a_rank_out_of_a_standby_hands_the_record_on(libraries: Libraries) -> None:
    libraries.prepare("os.environ['SECRET'] = 'of the script'\nimport lib_a", lib_a="")
    libraries.warm()
    assert libraries.ranks.content(2) == libraries.ranks.content(1)
    assert [libraries.ranks.record(attempt).stat().st_mode & 0o777 for attempt in (1, 2)] == [0o600, 0o600]
    third = libraries.ranks.ready("train.py", attempt=2)
    assert (third.poll(), third.why, third.note) == (READY, "", "")
    code, out, _ = libraries.ranks.warm("train.py", attempt=3)
    assert (code, out) == (0, "['lib_a']\n")


def test_a_usercustomize_is_refused_where_it_has_an_effect(libraries: Libraries) -> None:
    state, why, _ = libraries.prepare("", usercustomize="print()")
    assert (state, why) == (REFUSED, "your own usercustomize runs before the script")
    libraries.ranks.close()
    state, why, _ = libraries.prepare("import lib_a", lib_a="", usercustomize="# nothing yet")
    assert (state, why) == (READY, "")
    assert libraries.warm() == ["lib_a"]


@pytest.mark.parametrize(
    "late",
    few(
        [
            "sys.modules['_supervise_shim'].instrument._beat.saw_backward()",
            "sys.modules['_supervise_shim'].instrument._beat.script_over()",
            "if os.fork() == 0:\n    import lib_b\n    os._exit(0)\nos.wait()\nos.environ['LIB_MODE'] = '1'",
        ]
    ),
    ids=["trains", "is over", "is a forked child"],
)
def test_a_process_that_others_rely_on_is_not_started_cold(libraries: Libraries, late: str) -> None:
    begun = libraries.ranks.folder / "begun"
    script = f"open({str(begun)!r}, 'a').write('+')\nimport lib_a\nos.environ['LIB_MODE'] = os.environ['SUPERVISE_JOB_ATTEMPT']\n"
    state, why, _ = libraries.prepare(script + f"{late}\nimport lib_b", lib_a="", lib_b="import os\nmode = os.environ['LIB_MODE']")
    assert (state, why) == (READY, "")
    assert libraries.warm() == ["lib_a", "lib_b"]
    assert begun.read_text() == "++"
