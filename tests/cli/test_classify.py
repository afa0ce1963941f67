"""`supervise classify`: any log in, a cause out."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import main
from tests.support import preloaded
from tests.support.few import few
from tests.support.figures import costs_at_most, spent_s

ROOT = Path(main.__file__).parents[2]
HEAVY = ("torch", "logging", "rich", "prometheus_client", "boto3", "psutil", "tenacity", "asyncio")
OOM = """\
step 10 loss 2.31
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/user/train.py", line 80, in main
[rank3]:     out = model(batch)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB
"""
PEER = """\
Traceback (most recent call last):
  File "/home/user/train.py", line 88, in main
    loss.backward()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:2345
"""
#: What is said of a log that shows neither a failure, nor training, nor an end.
NOT_SEEN = "no sign of a failure, but neither training nor an end is seen"
HEALTHY = "step 1 loss 2.3\nstep 2 loss 2.2\n"

pytestmark = pytest.mark.process


def classify(
    *arguments: str, cwd: Path, stdin: bytes | None = None, python: tuple[str, ...] = ("-P",), **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command: in a fork of a process that has imported it, or with other options of the interpreter in one of its own."""
    environment = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(cwd), **env}
    if python == ("-P",):
        return preloaded.command("classify", *arguments, cwd=cwd, environ=environment, stdin=stdin or b"")
    command = [sys.executable, *python, "-m", "supervisor", "classify", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, input=stdin, capture_output=True, timeout=120, check=False)  # noqa: S603  ours


def answers(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def classification(*arguments: str, cwd: Path, stdin: bytes | None = None) -> dict[str, Any]:
    (answer,) = answers(classify("--json", *arguments, cwd=cwd, stdin=stdin))
    return answer


def test_json_has_cause_culprit_facts_and_evidence_with_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    answer = classification("a.log", cwd=tmp_path)
    assert {key: answer[key] for key in ("path", "cause", "rank", "gpu", "runner_up")} == {
        "path": "a.log", "cause": "cuda_oom", "rank": 3, "gpu": "3", "runner_up": None,
    }  # fmt: skip
    assert answer["confidence"] >= 0.9
    assert answer["facts"]["asked"] == str(2 << 30)
    first = answer["evidence"][0]
    assert (first["line"], first["rank"], first["signature"]) == (5, 3, "cuda_oom.torch")
    assert first["text"].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    assert "file" not in first


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_page_for_people_has_the_labels_of_the_card_and_all_that_matters(tmp_path: Path, width: int) -> None:
    (tmp_path / "a.log").write_text(OOM + PEER.replace("Traceback", "[rank0]: Traceback"))
    done = classify("a.log", cwd=tmp_path, COLUMNS=str(width))
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for output in (
        "what The GPU ran out of memory: 2.0 GiB asked for",
        "where rank 3, GPU 3 /home/user/train.py:80 in main", "cause cuda_oom, 97 % sure",
        "evidence line 5: rank 3: torch.OutOfMemoryError: CUDA out of memory.", "asked 2.0 GiB",
        "do Halve the micro-batch and double the gradient accumulation",
    ):  # fmt: skip
        assert output in text, text
    assert " ... " not in text, "nothing is cut"
    assert "End other processes" not in text, "the log shows none that hold memory"


def test_the_command_that_installs_a_missing_package_is_printed(tmp_path: Path) -> None:
    missing = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nModuleNotFoundError: No module named 'cv2'\n"
    for module, line in (
        ("cv2", "do Run `pip install opencv-python` in the job's environment"),
        ("our_models", "do Install what provides our_models, or correct the import"),
    ):
        (tmp_path / "a.log").write_text(missing.replace("cv2", module))
        assert line in " ".join(classify("a.log", cwd=tmp_path).stdout.decode().split())


def test_a_consequence_of_a_failure_is_marked(tmp_path: Path) -> None:
    text = " ".join(classify(str(attempt(tmp_path)), cwd=tmp_path).stdout.decode().split())
    assert "evidence rank-1.err line 5: torch.OutOfMemoryError" in text
    assert "a consequence: rank-0.err line 4: RuntimeError: [../third_party/gloo" in text


def test_the_rules_are_one_table_and_their_findings_in_a_log_are_shown(tmp_path: Path) -> None:
    (tmp_path / "supervise.toml").write_text('[[loss.rule]]\nid = "my.rule"\nkind = "inf"\n')
    (tmp_path / "supervise.toml").chmod(0o600)
    table = classify("--rules", cwd=tmp_path).stdout.decode().splitlines()
    assert len({row.split()[0] for row in table}) == len(table)
    assert {"cuda_oom.torch", "loss.nan", "my.rule"} < {row.split()[0] for row in table}
    (tmp_path / "a.log").write_text("step 1 loss: 2.5\nstep 2 loss: nan\nstep 3 loss: nan\n")
    assert classification("a.log", cwd=tmp_path)["strange"] == ["loss is NaN, 2 times in a row (step 3)"]
    assert "loss is NaN, 2 times in a row (step 3)" in classify("a.log", cwd=tmp_path).stdout.decode()


def test_standard_input_is_read_and_may_stand_among_files(tmp_path: Path) -> None:
    (tmp_path / "healthy.log").write_text(HEALTHY)
    assert classification("-", cwd=tmp_path, stdin=OOM.encode())["cause"] == "cuda_oom"
    both = answers(classify("--json", "healthy.log", "-", cwd=tmp_path, stdin=OOM.encode()))
    assert [(a["path"], a["cause"]) for a in both] == [("healthy.log", "none"), ("-", "cuda_oom")]


def test_several_logs_are_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    (tmp_path / "b.log").write_text(HEALTHY)
    lines = classify("a.log", "b.log", cwd=tmp_path).stdout.decode().splitlines()
    assert [line.split()[:2] for line in lines] == [["log", "cause"], ["a.log", "cuda_oom"], ["b.log", "none"]]


def test_a_directory_stands_for_the_plain_files_below_each_once(tmp_path: Path) -> None:
    below = tmp_path / "logs" / "deep" / "er"
    below.mkdir(parents=True)
    (below / "a.log").write_text(OOM)
    (tmp_path / "logs" / "b.log").write_text(HEALTHY)
    (tmp_path / "logs" / "latest.log").symlink_to(below / "a.log")
    (tmp_path / "logs" / "packed.gz").write_bytes(gzip.compress(OOM.encode()))
    os.mkfifo(tmp_path / "logs" / "pipe")
    (tmp_path / "logs" / "dead.log").symlink_to("gone")
    done = classify("--json", "logs", cwd=tmp_path)
    assert {a["path"]: a["cause"] for a in answers(done)} == {"logs/b.log": "none", "logs/latest.log": "cuda_oom"}
    assert b"error: cannot read logs/dead.log: No such file or directory" in done.stderr
    assert b"left out of logs packed files and programs: 1 files" in done.stderr


def attempt(place: Path) -> Path:
    """Make the files of an attempt in which rank 1 ran out of memory, and rank 0 lost it two seconds later."""
    directory = place / "attempts" / "0003"
    directory.mkdir(parents=True)
    many = "".join(f"step {step} loss 2.{step}\n" for step in range(300))
    files = {
        "rank-0.out": (many, 12), "rank-0.err": (PEER, 12), "rank-1.out": ("step 1 loss 2.3\n", 8), "rank-1.err.1": ("warming up\n" * 7, 5),
        "rank-1.err": (OOM.replace("[rank3]: ", "").replace("GPU 3", "GPU 1"), 10), "agent.err": ("", 4),
    }  # fmt: skip
    for name, (text, changed_at) in files.items():
        (directory / name).write_text(text)
        os.utime(directory / name, (1_800_000_000 + changed_at,) * 2)
    return directory


def test_the_files_of_an_attempt_are_one_incident_with_ranks_from_their_names(tmp_path: Path) -> None:
    attempt(tmp_path)
    answer = classification("attempts/0003", cwd=tmp_path)
    assert (answer["path"], answer["cause"], answer["rank"]) == ("attempts/0003", "cuda_oom", 1)
    first = answer["evidence"][0]
    assert (first["file"], first["line"], first["rank"]) == ("rank-1.err", 5, 1)
    assert any(e["file"] == "rank-0.err" and e["line"] == 4 and e["rank"] == 0 for e in answer["evidence"])
    page = classify("attempts/0003", cwd=tmp_path).stdout.decode()
    assert "rank-1.err line 5: " in page


def test_of_an_attempt_the_rank_that_fell_silent_first_is_the_culprit(tmp_path: Path) -> None:
    directory = attempt(tmp_path)
    error = "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    g()\nKeyError: 'x'\n"
    for rank, changed_at in ((0, 20), (1, 15)):
        (directory / f"rank-{rank}.err").write_text("x\n" * (10 if rank else 0) + error)
        os.utime(directory / f"rank-{rank}.err", (1_800_000_000 + changed_at,) * 2)
    assert classification("attempts", cwd=tmp_path)["rank"] == 1
    os.utime(directory / "rank-0.err", (1_800_000_000,) * 2)
    assert classification("attempts", cwd=tmp_path)["rank"] == 0


def test_a_survived_error_is_no_cause(tmp_path: Path) -> None:
    directory = attempt(tmp_path)
    (directory / "rank-1.err").write_text("no failure\n")
    (directory / "rank-0.err").write_text(OOM + "".join(f"step {step} loss 2.{step}\n" for step in range(300)))
    assert classification("attempts", cwd=tmp_path)["cause"] != "cuda_oom"


def test_an_unreadable_log_is_named_and_the_others_are_classified(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(OOM.encode()))
    done = classify("--json", "gone.log", "a.log.gz", "a.log", cwd=tmp_path)
    assert [a["path"] for a in answers(done)] == ["a.log"]
    errors = done.stderr.decode()
    assert "error: cannot read gone.log: No such file or directory" in errors
    assert "error: cannot read a.log.gz: it is packed, or a program" in errors
    assert "zcat LOG.gz | supervise classify -" in errors


@pytest.mark.parametrize("arguments", [(), ("gone.log",), ("empty",), ("--json", "gone.log")])
def test_a_call_without_logs_exits_with_64_and_a_hint(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()
    done = classify(*arguments, cwd=tmp_path)
    assert done.returncode == 64
    assert done.stdout == b""
    assert b"error: nothing to read: " in done.stderr
    assert b"supervise classify slurm-1234.out" in done.stderr


def test_an_empty_log_is_unknown_not_healthy(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    answer = classification("a.log", cwd=tmp_path)
    assert (answer["cause"], answer["summary"], answer["evidence"]) == ("unknown", "the log is empty", [])
    stdout = classify("a.log", cwd=tmp_path).stdout
    assert b"The log is empty" in stdout
    assert b"failed" not in stdout.partition(b" do ")[0], "of a log that shows nothing nobody knows that something failed"


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        pytest.param(bytes(range(256)) * 4000, "it is not text", id="every byte"),
        pytest.param(b"\0" * 1_000_000, "it holds nothing but NULs", id="NULs"),
        pytest.param(b"x" * 3_000_000, NOT_SEEN, id="3 MB in one line"),
        pytest.param(b"\r".join(b"%3d%%|####| %d/100 [loss=2.1]" % (i % 100, i) for i in range(200_000)), "", id="a progress bar"),
        pytest.param("\udcff\ud800".encode("utf-8", "surrogatepass") * 1000, NOT_SEEN, id="no UTF-8"),
    ],
)
def test_garbage_is_no_failure_and_a_later_failure_is_found(tmp_path: Path, log: bytes, problem: str) -> None:
    (tmp_path / "a.log").write_bytes(log)
    answer = classification("a.log", cwd=tmp_path)
    # a bar that is not full says one thing more
    summary = answer["summary"].removesuffix("; the log stops in mid-run")
    assert (answer["cause"], summary) == (("unknown", problem) if problem else ("none", "no sign of a failure"))
    (tmp_path / "b.log").write_bytes(log + b"\n" + OOM.encode())
    answer = classification("b.log", cwd=tmp_path)
    assert answer["cause"] == "cuda_oom"
    assert answer["evidence"][0]["line"] == 6 + log.count(b"\n")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
        "sys.argv = ['supervise', 'classify', '--json', '-']\nfrom supervisor.cli.main import main\nsys.exit(main())"
    )
    block = (HEALTHY * 30_000).encode()
    command = [sys.executable, "-P", "-c", code]
    with subprocess.Popen(  # noqa: S603  ours
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(600):
            process.stdin.write(block)
        process.stdin.close()
        answer = json.loads(process.stdout.read())
        assert process.wait(60) == 0
    assert answer["cause"] == "none"


def test_escapes_and_secrets_of_a_log_do_not_reach_the_terminal(tmp_path: Path) -> None:
    log = (
        OOM.replace("CUDA out of memory.", "\x1b[31mCUDA out of memory.\x1b[0m")
        + "RuntimeError: \x1b]0;title\x07 api_key=abcdef123456789\n"
    )
    (tmp_path / "a.log").write_text(log)
    for arguments in (("a.log",), ("--json", "a.log")):
        done = classify(*arguments, cwd=tmp_path)
        assert b"CUDA out of memory" in done.stdout
        assert b"\x1b" not in done.stdout
        assert b"abcdef123456789" not in done.stdout


@pytest.mark.parametrize(
    "text", ["password=correcthorse", "api_key: abcdefghijklmnop", "https://me:correcthorse@host/", "hf_abcdefghijklmnopqrstuvwx9"]
)
def test_an_exceptions_secrets_are_in_no_field_of_the_answer(tmp_path: Path, text: str) -> None:
    log = f'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    login()\nRuntimeError: refused {text}\n'
    (tmp_path / "a.log").write_text(log)
    (answer,) = answers(classify("--json", "a.log", cwd=tmp_path))
    assert answer["cause"] == "user_code"
    assert not re.search("correcthorse|abcdefghijkl", json.dumps(answer))
    assert "train.py;main" in answer["fingerprint"].replace(":", ";")


def test_signatures_of_the_users_own_are_used_and_a_bad_row_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "supervise.toml").write_text('[classify]\nsignatures = ["mine.toml"]\n')
    row = (
        '[[signature]]\nid = "data_error.{0}"\ncause = "data_error"\nwhere = ["line"]\n'
        'anchors = ["shard is {0}"]\npattern = "{1}"\nweight = 0.9\n'
    )
    (tmp_path / "mine.toml").write_text(row.format("damaged", "shard is damaged") + row.format("bad", "shard is (bad"))
    (tmp_path / "a.log").write_text("reader: shard is damaged\n")
    done = classify("--json", "a.log", cwd=tmp_path)
    (answer,) = answers(done)
    assert (answer["cause"], answer["evidence"][0]["signature"]) == ("data_error", "data_error.damaged")
    assert done.stderr.decode().count("warning: ") == 1
    assert "warning: signature data_error.bad of " in done.stderr.decode()
    (tmp_path / "b.log").write_text(OOM)
    assert classification("b.log", cwd=tmp_path)["cause"] == "cuda_oom"


def test_a_file_of_signatures_that_is_not_toml_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[[signature\n")
    (tmp_path / "a.log").write_text(OOM)
    done = classify("--json", "a.log", cwd=tmp_path, SUPERVISE_CLASSIFY_SIGNATURES="mine.toml")
    assert answers(done)[0]["cause"] == "cuda_oom"
    assert b"warning: signature (whole file) of " in done.stderr


def test_a_file_of_signatures_that_is_gone_or_others_may_write_is_78(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    result = classify("a.log", cwd=tmp_path, SUPERVISE_CLASSIFY_SIGNATURES="mine.toml")
    assert result.returncode == 78
    assert b"mine.toml: no such file" in result.stderr
    assert b"Correct classify.signatures (environment SUPERVISE_CLASSIFY_SIGNATURES)" in result.stderr
    (tmp_path / "mine.toml").touch()
    (tmp_path / "mine.toml").chmod(0o666)
    refused = classify("a.log", cwd=tmp_path, SUPERVISE_CLASSIFY_SIGNATURES="mine.toml")
    assert refused.returncode == 78
    assert b"signatures refused: " in refused.stderr
    assert b"others may write" in refused.stderr
    assert refused.stdout == b""
    (tmp_path / "mine.toml").chmod(0o600)
    (tmp_path / "mine.toml").write_bytes(b"#" * ((1 << 20) + 1))
    large = classify("a.log", cwd=tmp_path, SUPERVISE_CLASSIFY_SIGNATURES="mine.toml")
    assert large.returncode == 78
    assert b"cannot read signatures: " in large.stderr
    assert b"larger than 1 MiB" in large.stderr


@pytest.mark.parametrize("unbuffered", few(["", "1"]))
def test_a_reader_that_has_enough_is_no_failure(tmp_path: Path, unbuffered: str) -> None:
    for number in range(300):
        (tmp_path / f"{number}.log").write_text(OOM)
    env = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-P", "-m", "supervisor", "classify", "--json", "."]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603  ours
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 0, errors
    assert errors == b""


@pytest.mark.bench("only")
def test_help_costs_little(tmp_path: Path) -> None:
    costs = []
    for _ in range(5):
        before = spent_s()
        classify("--help", cwd=tmp_path)
        costs.append(spent_s() - before)
    assert min(costs) <= 0.15


def test_help_names_what_can_be_read(tmp_path: Path) -> None:
    done = classify("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert b"FILE|DIR|-..." in done.stdout
    assert b"--json" in done.stdout


@pytest.mark.parametrize(("words", "needed"), [(["--json"], set()), ([], {"rich"})], ids=["JSON", "page"])
def test_the_command_imports_no_heavy_module(tmp_path: Path, words: list[str], needed: set[str]) -> None:
    (tmp_path / "a.log").write_text(OOM)
    done = classify(*words, "a.log", cwd=tmp_path, python=("-P", "-X", "importtime"))
    assert b"cuda_oom" in done.stdout
    modules = [line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines() if line.startswith("import time:")]
    assert "supervisor.cli.classify.reading" in modules  # the command itself comes by import_module, which is not timed
    assert {module.partition(".")[0] for module in modules} & set(HEAVY) == needed, "rich lays the page out"


def test_a_pattern_of_the_users_own_that_has_no_end_is_left_out_with_one_word(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[[signature]]\nid = "data_error.endless"\ncause = "data_error"\nwhere = ["line"]\n'
        'anchors = ["xxxx"]\npattern = "(?:(x+x+)+y)"\nweight = 0.9\n'
    )
    (tmp_path / "a.log").write_text(("x" * 12_000 + "\n") * 50 + OOM)
    done = classify("--json", "a.log", cwd=tmp_path, SUPERVISE_CLASSIFY_SIGNATURES="mine.toml")
    assert answers(done)[0]["cause"] == "cuda_oom"
    errors = done.stderr.decode()
    assert errors.count("data_error.endless") == 1
    assert "is not in use: its search of one line may take too long (without end)" in errors


def test_a_file_of_signatures_that_cannot_be_read_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    (tmp_path / "mine.toml").mkdir()
    done = classify("a.log", cwd=tmp_path, SUPERVISE_CLASSIFY_SIGNATURES="mine.toml")
    assert done.returncode == 78
    assert b"cannot read signatures: " in done.stderr
    assert b"mine.toml: it is a directory" in done.stderr


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_a_log_in_utf_16_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.log").write_bytes(OOM.encode(encoding))
    answer = classification("a.log", cwd=tmp_path)
    assert (answer["cause"], answer["rank"], answer["evidence"][0]["line"]) == ("cuda_oom", 3, 5)


def test_a_file_of_an_attempt_by_itself_is_of_the_rank_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "rank-3.err").write_text(OOM.replace("[rank3]: ", ""))
    assert classification("rank-3.err", cwd=tmp_path)["rank"] == 3


@pytest.mark.bench("only")  # what is read of it, and in how much memory, tests/classify holds
def test_a_flood_is_answered_soon(tmp_path: Path) -> None:
    line = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)\n"
    (tmp_path / "a.log").write_text(line * 60_000)
    with costs_at_most(6):
        classify("a.log", cwd=tmp_path)


def test_a_pipe_that_nobody_writes_into_is_waited_for_with_a_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-P", "-m", "supervisor", "classify", "--json", "pipe"]
    env = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603  ours
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == b"supervise: waiting for lines of pipe\n"
        with (tmp_path / "pipe").open("w") as pipe:
            pipe.write(OOM)
        assert json.loads(process.stdout.read())["cause"] == "cuda_oom"
        assert process.wait(60) == 0


def shell(words: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Run `supervise classify` with what a shell makes of its descriptors."""
    command = f'"{sys.executable}" -P -m supervisor classify {words}'
    env = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(["sh", "-c", command], cwd=cwd, env=env, capture_output=True, timeout=120, check=False)  # noqa: S603, S607  ours


def test_a_closed_stdin_is_reported_as_such(tmp_path: Path) -> None:
    done = shell("- <&-", tmp_path)
    assert done.returncode == 64
    assert b"cannot read -: standard input is closed" in done.stderr
    assert b"internal error" not in done.stderr


@pytest.mark.parametrize("words", few(["a.log", "--json a.log b.log"]))
def test_a_stdout_that_is_full_is_reported_as_such(tmp_path: Path, words: str) -> None:
    (tmp_path / "a.log").write_text(OOM)
    (tmp_path / "b.log").write_text(OOM)
    done = shell(f"{words} > /dev/full", tmp_path)
    assert done.returncode == 78
    assert b"cannot write to stdout: No space left on device" in done.stderr
    assert b"internal error" not in done.stderr


ABORT = "step 10 loss 2.31\nckpt-writer[3]: pwrite(fd=41, 1048576) -> -1 (EROFS)\nFatal Python error: Aborted\n"


def test_an_explanation_shows_what_was_seen_what_outranked_what_and_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(ABORT)
    answer = classification("--explain", "a.log", cwd=tmp_path)
    assert [(row["line"], row["cause"], row["is"]) for row in answer["weighed"]] == [
        (2, "io_error", "the cause"),
        (3, "unknown_native_abort", "may follow from io_error (line 2)"),
    ]
    done = classify("--explain", "a.log", cwd=tmp_path, COLUMNS="160")
    output = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    for words in ("the candidates", "the cause", "may follow from io_error (line 2)", "[[signature]]", "anchors = "):
        assert words in output


def test_the_row_of_an_explanation_names_the_cause_once_it_stands_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("loader 7: the shelf 12 of the vault is closed, error 4410\nFatal Python error: vault closed\n")
    row = classification("--explain", "a.log", cwd=tmp_path)["row"]
    (tmp_path / "signatures.toml").write_text(row.replace("unknown_native_abort", "vault_closed"))
    (tmp_path / "supervise.toml").write_text('[classify]\nsignatures = ["signatures.toml"]\n')
    answer = classification("a.log", cwd=tmp_path)
    assert (answer["cause"], answer["confidence"]) == ("vault_closed", 0.9)


def test_an_explanation_of_a_log_without_a_sign_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("reading 4 files\n")
    output = classify("--explain", "a.log", cwd=tmp_path).stdout.decode()
    assert "Nothing in the log claims a cause." in output
    assert "the words of your error" in output
