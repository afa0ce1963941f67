"""Each rule reports its fault at the right line, and stays silent about code that is right or may be right."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from supervisor.classify.source.findings import HANDLER, LOAD, RANK_TEST, RULES, UNEVEN
from supervisor.classify.source.rules import findings
from supervisor.classify.source.script import MOST_BYTES

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "tests" / "jobs"
TORCH = Path(torch.__file__).parent

#: Each pathology of tests/jobs that a text can show, with its rule and its line. What is not here has nothing.
PATHOLOGIES = {
    ("causes.py", RANK_TEST, "distributed.all_reduce(ones)"),
    ("unsynced.py", RANK_TEST, "dist.all_reduce(value)  # of rank 0"),
    ("hangs.py", UNEVEN, "return  # one batch fewer"),
    ("hangs.py", HANDLER, "except KeyError:"),  # `swallowed`
    ("hang_parallel.py", UNEVEN, "for _ in range(batches):"),
    ("race.py", LOAD, "torch.load(path)"),
}


def test_each_pathology_of_the_test_jobs_is_found_at_its_line_and_nothing_else() -> None:
    seen = set()
    for path in sorted(JOBS.glob("*.py")):
        lines = path.read_text().splitlines()
        seen |= {(path.name, finding.rule, lines[finding.line - 1].strip()) for finding in findings(path.read_bytes())}
    assert seen == PATHOLOGIES


@pytest.mark.parametrize(
    "directory",
    [
        ROOT / "examples",
        ROOT / "tests" / "programs",
        TORCH / "distributed" / "checkpoint",
        TORCH / "distributed" / "elastic",
        TORCH / "testing" / "_internal" / "distributed" / "_tensor",
        TORCH / "testing" / "_internal" / "distributed" / "rpc" / "examples",
    ],
    ids=lambda path: "/".join(path.parts[-2:]),
)
def test_working_programs_have_no_findings(directory: Path) -> None:
    files = [path for path in sorted(directory.rglob("*.py")) if "_export/db" not in str(path)]
    assert files
    assert [(path.name, finding.line, finding.text) for path in files for finding in findings(path.read_bytes())] == []


@pytest.mark.slow
@pytest.mark.parametrize("package", ["distributed", "testing/_internal", "nn", "optim", "utils"])
def test_torch_itself_has_no_findings(package: str) -> None:
    for path in sorted((TORCH / package).rglob("*.py")):
        if "py312" not in path.name:  # another Python's syntax
            assert [(finding.line, finding.text) for finding in findings(path.read_bytes())] == [], path


def test_the_scripts_of_the_readme_and_the_guides_have_no_findings() -> None:
    scripts = [
        script
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        for script in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert len(scripts) > 3
    for script in scripts:
        assert findings(textwrap.dedent(script).encode()) == (), script


#: What stands before each script of wrong.txt and right.txt.
HEAD = "import os\nimport torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


def scripts(name: str) -> list[tuple[str, str]]:
    """Return the scripts of a file, each with the name of the rule above it, "" for none."""
    parts = re.split(r"^###(.*)\n", (Path(__file__).parent / name).read_text(), flags=re.MULTILINE)[1:]
    return [(rule.strip(), script) for rule, script in zip(parts[::2], parts[1::2], strict=True)]


#: Each has the pathology in the line that ends with `# here`, and nothing else.
WRONG = scripts("wrong.txt")
#: Each of these is right, or a rule cannot be sure that it is wrong.
RIGHT = [script for _, script in scripts("right.txt")]


@pytest.mark.parametrize(("rule", "script"), WRONG)
def test_each_mistake_is_found_at_its_line(rule: str, script: str) -> None:
    lines = (HEAD + script).splitlines()
    here = [number for number, line in enumerate(lines, 1) if line.endswith("# here")]
    assert [(finding.rule.name, finding.line) for finding in findings((HEAD + script).encode())] == [(rule, line) for line in here]


def test_each_rule_has_a_case() -> None:
    assert {name for name, _ in WRONG} == {rule.name for rule in RULES}


@pytest.mark.parametrize("script", RIGHT)
def test_correct_or_uncertain_code_has_no_findings(script: str) -> None:
    assert findings((HEAD + script).encode()) == ()


def test_the_variable_of_the_gpus_may_be_set_before_torch_is_imported() -> None:
    assert findings(b"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nimport torch\n") == ()


def test_a_finding_names_lines_and_tests() -> None:
    (finding,) = findings(b"import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n")
    assert finding.text == "only ranks with `dist.get_rank() == 0` (line 2) call barrier: the others never come to it"
    assert [finding.holds(line) for line in (1, 2, 3, 4)] == [False, True, True, False]


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbf# a mark of the byte order\nimport torch\n",
        "# -*- coding: latin-1 -*-\nimport torch\nname = 'é'\n".encode("latin-1"),
        "# coding: utf-8\nimport torch\nname = '日本'\n".encode(),
        b"# %%\nimport torch\n# %%\nx = 1\n",
        b"",
    ],
)
def test_each_encoding_is_read(source: bytes) -> None:
    assert findings(source) == ()


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (b"import torch\nif x\n    y = 1\n", 2),
        (b"import torch\n%matplotlib inline\n", 2),
        (b"import torch\nx = '\xff'\n", None),
        (b"import torch\nx = '\x00'\n", None),
        (b"import torch\nprint 'two'\n", 2),
    ],
)
def test_a_syntax_error_names_its_line(source: bytes, line: int | None) -> None:
    with pytest.raises(SyntaxError) as caught:
        findings(source)
    assert line is None or caught.value.lineno == line


_MEASURE = """
import ast, sys, time
from supervisor.classify.source.rules import findings
text = open(sys.argv[1], "rb").read()
begun = time.process_time()
ast.parse(text)
parsed = time.process_time()
findings(text)
print((time.process_time() - parsed) / (parsed - begun))
"""


def test_a_script_of_20000_lines_takes_little_more_than_to_parse_it(tmp_path: Path) -> None:
    """As a multiple of what Python itself needs for it, which other processes change less than the seconds."""
    part = (JOBS / "ddp_small.py").read_text().replace("from __future__ import annotations\n", "")
    script = tmp_path / "long.py"
    script.write_text(part * (20_000 // len(part.splitlines()) + 1))
    done = subprocess.run([sys.executable, "-c", _MEASURE, str(script)], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    assert float(done.stdout) < 5, done.stdout


def test_an_oversized_or_too_deep_script_has_no_findings() -> None:
    assert findings(b"#" * (MOST_BYTES + 1)) == ()
    for terms in (300, 600, 3000):  # Python refuses the last, and our own steps may refuse those before it
        deep = "import torch.distributed as dist\nif " + "+".join(["dist.get_rank()"] * terms) + " == 0:\n    dist.barrier()\n"
        with contextlib.suppress(SyntaxError):
            assert findings(deep.encode()) == ()
    chain = "import torch.distributed as dist\nif a == 0:\n    pass\n" + "".join(
        f"elif a == {n}:\n    dist.barrier()\n" for n in range(500)
    )
    assert findings(chain.encode()) == ()
    circles = "import torch.distributed as dist\n" + "a = b and c\nb = c and a\nc = a\n" * 200 + "if a == 0 or b:\n    dist.barrier()\n"
    assert findings(circles.encode()) == ()
    returns = "".join(f"def f{n}():\n" + "".join(f"    return f{m}()\n" for m in range(40)) for n in range(40))
    assert findings(f"import torch.distributed as dist\n{returns}if f0():\n    dist.barrier()\n".encode()) == ()
    calls = "import torch\n" + "".join(f"def f{n}():\n    f{n + 1}()\n    f{n + 2}()\n    torch.save(1, p)\n" for n in range(1000))
    assert findings(calls.encode()) == ()
