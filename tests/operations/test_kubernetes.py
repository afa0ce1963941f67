"""`supervise print kubernetes` and the Dockerfile: against Kubernetes's published schemas, a linter, and our own exit codes and probes."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click.testing
import kubernetes_validate
import pytest
import yaml

from supervisor.cli.invocation import Invocation
from supervisor.cli.main import root
from supervisor.errors import ExitCode
from tests.support.few import few_rows
from tests.support.supervised import clean_environment

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docs/operations/Dockerfile"
#: The schemas of 1.25 to 1.28 ask each rule of podFailurePolicy for onPodConditions, against their own text.
VERSIONS = ("1.29", "1.31", kubernetes_validate.latest_version())
TRAIN = ["--", "torchrun", "--nproc-per-node=8", "train.py"]
CASES = {
    "one pod": ["--job", "bert", "--image", "registry.example/bert:1", *TRAIN],
    "all that can be said": [
        "--job", "bert-large", "--image", "registry.example:5000/bert@sha256:" + "0" * 64, "--nodes", "4", "--gpus", "8",
        "--pod-grace-s", "600", "--set", "metrics.listen=0.0.0.0:9409",
        "--set", "checkpoints.paths=/ckpt/*.pt", "--set", "knobs.resume.args=--resume {resume}", *TRAIN,
    ],
    "words that YAML has other plans for": [
        "--job", "y", "--", "python", "-c", 'print("no: yes # \'{}\' \\")\n', "yes", "1e3", "~", "- x", "é\u2028",
    ],
}  # fmt: skip


def printed(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["supervise", "print", "kubernetes", *words]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)  # noqa: S603


def documents(*words: str) -> list[dict[str, Any]]:
    done = printed(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def cases() -> dict[str, list[dict[str, Any]]]:
    return {name: documents(*words) for name, words in CASES.items()}


@pytest.mark.parametrize(("case", "version"), list(itertools.product(CASES, VERSIONS)))
def test_each_document_fits_the_published_schema_and_has_no_field_that_is_not_there(
    cases: dict[str, list[dict[str, Any]]], case: str, version: str
) -> None:
    assert [document["kind"] for document in cases[case]][-1] == "Job"
    for document in cases[case]:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_is_not_there_is_found(cases: dict[str, list[dict[str, Any]]]) -> None:
    """The check above can fail."""
    wrong = yaml.safe_load(yaml.safe_dump(cases["one pod"][-1]))
    wrong["spec"]["podFailurePolicies"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def job(documents: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the spec of the Job, of its pods, and of their container."""
    spec = documents[-1]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    return spec, pod, container


def test_the_words_of_the_command_arrive_as_they_were_given(cases: dict[str, list[dict[str, Any]]]) -> None:
    for name, words in CASES.items():
        command = job(cases[name])[2]["command"]
        arguments = words[words.index("--") + 1 :]
        assert command[:5] == ["supervise", "--job", words[1], "--state-dir", "/state"]
        behind = command[command.index("--") + 1 :]
        assert [word for word in behind if not word.startswith(("--nnodes", "--rdzv"))] == arguments


def action(spec: dict[str, Any], code: int) -> str:
    """Return what the first rule that matches makes of a pod whose container ended with `code`, as Kubernetes reads them."""
    for rule in spec["podFailurePolicy"]["rules"]:
        if codes := rule.get("onExitCodes"):
            assert codes["values"] == sorted(set(codes["values"])), "Kubernetes wants them in order"
            if (code in codes["values"]) == (codes["operator"] == "In"):
                return str(rule["action"])
    return "Count"


def test_the_policy_follows_our_exit_codes(cases: dict[str, list[dict[str, Any]]]) -> None:
    spec, pod, container = job(cases["one pod"])
    disruption, *own_rules = spec["podFailurePolicy"]["rules"]
    assert disruption == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert {rule["onExitCodes"]["containerName"] for rule in own_rules} == {container["name"]}
    assert pod["restartPolicy"] == "Never", "podFailurePolicy asks for it"
    assert action(spec, ExitCode.REQUEUE) == "Ignore"
    assert {code for code in range(1, 256) if action(spec, code) == "Count"} == {ExitCode.BAD_NODE, ExitCode.BUG, 129, 137, 143}
    final = (1, 3, 63, ExitCode.USAGE, ExitCode.DETERMINISTIC, ExitCode.CONFIG, ExitCode.HANG, 127, 130, 139)
    assert {action(spec, code) for code in final} == {"FailJob"}


def test_the_grace_is_known_in_the_pod_and_the_pods_of_several_nodes_find_each_other(cases: dict[str, list[dict[str, Any]]]) -> None:
    claim, service, _ = cases["all that can be said"]
    spec, pod, container = job(cases["all that can be said"])
    assert pod["terminationGracePeriodSeconds"] == 600
    assert container["env"] == [{"name": "SUPERVISE_STOP_LEFT_S", "value": "600"}]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["publishNotReadyAddresses"], "no pod is ready before they have met"
    name = service["metadata"]["name"]
    assert pod["subdomain"] == name
    assert f"--rdzv-endpoint={name}-0.{name}:{service['spec']['ports'][0]['port']}" in container["command"]
    assert claim["metadata"]["name"] == pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9409}]
    assert len(f"{name}-{spec['completions']}") <= 63


def test_metrics_on_loopback_are_announced_to_nobody(cases: dict[str, list[dict[str, Any]]]) -> None:
    alone = documents("--job", "bert", "--set", "metrics.listen=9409", *TRAIN)
    assert "ports" not in job(alone)[2]
    assert "annotations" not in alone[-1]["spec"]["template"]["metadata"]
    opened = cases["all that can be said"][-1]["spec"]["template"]["metadata"]
    assert opened["annotations"] == {"prometheus.io/scrape": "true", "prometheus.io/port": "9409"}


def test_a_probe_is_a_command_of_ours(cases: dict[str, list[dict[str, Any]]]) -> None:
    container = job(cases["one pod"])[2]
    for kind, probe in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        words = container[kind]["exec"]["command"]
        assert words == ["supervise", "status", "--job", "bert", "--probe", probe]
        parsed = click.testing.CliRunner().invoke(root, [*words[1:], "--help"], obj=Invocation({}, None, None))
        assert parsed.exit_code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    few_rows(
        [
            (["--job", "Bert_1", *TRAIN], "no name for a Job: 'Bert_1'"),
            (["--job", "b" * 53, *TRAIN], "no name for a Job"),
            (["--job", "bert"], "no command given"),
            (["--nodes", "2", "--", "torchrun", "--standalone", "t.py"], "torchrun --standalone runs on one node"),
        ]
    ),
)
def test_an_impossible_option_is_an_error(words: list[str], error: str) -> None:
    done = printed(*words)
    assert done.returncode == 64
    assert error in done.stderr


# the Dockerfile


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def test_a_linter_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=clean_environment()["PATH"])
    assert hadolint is not None, "pip install -e '.[dev]'"
    done = subprocess.run([hadolint, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, "")


def test_supervise_is_process_1_of_the_image_without_a_shell_and_without_root() -> None:
    steps = dict(instructions())
    assert steps["ENTRYPOINT"] == '["supervise"]'
    assert yaml.safe_load(steps["CMD"])[0] == "--"
    assert steps["USER"] == "1000:1000"
    assert steps["WORKDIR"] == "/workspace"
    assert steps["COPY"].split()[0] == "--chown=1000:1000", "the job writes where it runs"
    assert steps["RUN"].endswith("chown 1000:1000 /state /workspace")
    assert steps["HEALTHCHECK"].endswith('CMD ["supervise", "status", "--probe", "live"]')
    assert not any("torch" in shlex.split(rest) or "torch==" in rest for word, rest in instructions() if word == "RUN"), (
        "the image's torch stays"
    )
