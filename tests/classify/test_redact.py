"""No file that we write holds a recognisable secret."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import textwrap
from urllib.parse import quote

import pytest

from supervisor.classify import redact, secret_forms
from tests.support.canaries import CANARY, PLANTED
from tests.support.few import few
from tests.support.figures import costs_at_most


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", "hunter2"],
        ["--hf-token=hunter2"],
        ["--db.password", "hunter2"],
        ["-api_key", "hunter2"],
        ["env", "WANDB_API_KEY=hunter2", "python"],
        ["--auth", "hunter2", "--lr", "1"],
        ["postgres://user:hunter2@host/db"],
        ["--header", "Authorization: Bearer hunter2"],
        ["sh", "-c", "train.py --secret hunter2"],
    ],
)
def test_a_secret_of_a_command_is_a_digest(arguments: list[str]) -> None:
    output = redact.command(arguments)
    assert len(output) == len(arguments)
    assert "hunter2" not in " ".join(output)
    assert secret_forms.MARK in " ".join(output)


@pytest.mark.parametrize(
    "argument",
    [
        "--max-tokens=512",
        "--tokenizer=gpt2",
        "--num_token=3",
        "--token-file=/x",
        "--author=me",
        "--lr=0.1",
        "s3://bucket/key",
        "--seed=1",
        "a:b@c",
    ],
)
def test_a_harmless_argument_stays(argument: str) -> None:
    assert redact.command([argument, "next"]) == (argument, "next")
    assert redact.text(f"given {argument} here") == f"given {argument} here"


def test_the_flag_after_a_secret_flag_is_no_value() -> None:
    assert redact.command(["--token", "--lr", "1"]) == ("--token", "--lr", "1")


def test_redacted_values_stay_distinguishable_and_repeats_stay_equal() -> None:
    first, other, again = (redact.text(f"token={value}") for value in ("a", "b", "a"))
    assert first == again != other


@pytest.mark.parametrize("name", PLANTED)
def test_no_planted_secret_is_left(name: str) -> None:
    output = redact.text(f"step 1\n{PLANTED[name]}\nstep 2 loss=0.25")
    assert CANARY not in output
    assert output.startswith("step 1\n")
    assert output.endswith("step 2 loss=0.25")
    assert redact.text(output) == output, "what was hidden once stays as it is"


@pytest.mark.parametrize("name", PLANTED)
def test_no_planted_secret_is_left_in_base64(name: str) -> None:
    encoded = base64.b64encode(PLANTED[name].encode()).decode()
    assert encoded not in redact.text(f"payload {encoded} of 1")


@pytest.mark.parametrize("name", PLANTED)
def test_no_planted_secret_is_left_in_a_line_of_json(name: str) -> None:
    output = redact.text(json.dumps({"event": "x", "message": PLANTED[name]}))
    assert CANARY not in output
    assert json.loads(output)["event"] == "x"


def test_base64_is_recognised_in_lines() -> None:
    lines = textwrap.wrap(base64.b64encode(("x" * 60 + PLANTED["json_pretty_object"]).encode()).decode(), 76)
    assert len(lines) > 1
    assert redact.text("\n".join(["begin", *lines, "end"])).split("\n")[1:-1] == [redact.digest("\n".join(lines))]


@pytest.mark.parametrize(
    "token",
    [
        "glsa_Xy7PqLm3RtBv9KdWz2NcQ8sFhJ4gT6aE_3f5a9c01",
        "hvs.CAESIJ8k2Xw5Qn7Rz3Lp9Tb4Vc6Md1Hs0Gf",
        "dG9r/ZW4gb2Yg+YSBrZXk3Nz8x9Qw7Lm2Zk5Rt8==",
        "ATATT3xFfGF0Xy7PqLm3RtBv9KdWz2NcQ8sF-kJ5=1A2B3C4D",
    ],
)
def test_a_word_by_chance_is_a_token_of_an_issuer_that_nobody_knows(token: str) -> None:
    assert token[8:30] not in redact.text(f"got {token}, retrying")


def test_a_line_of_a_private_key_alone_is_hidden() -> None:
    """Evidence holds lines: the head of the key is in another one."""
    line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    assert redact.document(["-----BEGIN PRIVATE KEY-----", line]) == ["-----BEGIN PRIVATE KEY-----", redact.digest(line)]


@pytest.mark.parametrize(
    "token",
    [
        "AKIA" + "IOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2_" * 8,
        "glpat-" + "a1B2" * 5,
        "hf_" + "a1B2" * 9,
        "sk-proj-" + "a1B2" * 9,
        "sk_live_" + "a1B2" * 6,
        "nvapi-" + "a1B2" * 9,
        "AIza" + "a1B2c" * 7,
        "xoxb-" + "123-456-a1B2",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0" + ".c2lnbmF0dXJl",
        "SG." + "a1B2c3D4e5F6g7H8" + "." + "a1B2c3D4e5F6g7H8",
    ],
)
def test_a_token_is_known_by_its_issuer_s_form(token: str) -> None:
    assert token not in redact.text(f"got {token}, retrying")
    assert token not in redact.text(f'{{"x":"{token}"}}')


@pytest.mark.parametrize(
    "line",
    [
        "epoch 3 forward_pass: 12.5 ms, tokens/s: 1200, tokens: 512",
        "commit 0a1b2c3d4e5f60718293a4b5c6d7e8f901234567 of main",
        "https://host:8080/path?step=12&epoch=3 took 3 s",
        "git@github.com:org/repo.git and ssh://git@github.com/org/repo",
        "Missing key(s) in state_dict: 'module.layer1.weight'",
        "/data/checkpoints/Run42/step_1000/model-00001-of-00010.safetensors",
        "rank 3: NCCL WARN Cuda failure 'out of memory' at allreduce.cu:42",
        "s3://bucket/jobs/x/step_100.pt",
        "KeyError: 'labels'",
        "2026-11-23T11:46:40.118Z PWD=/home/me OLDPWD=/tmp",
        "authentication failed: no route to host",
        "Token indices sequence length is longer than the specified maximum (1024 > 512)",
        "hidden_size: int = 4096, n_token: 12, pad_token_id=0",
        "pass: remove_noop_ops, backward_pass=AllReduce, forward_pass: 12.5ms/iter, first_pass=True",
        '  "pwd": "/home/user1/run22", use_auth_token=False, hub_token=None, hub_token=<HUB_TOKEN>, token ****, --token $HF_TOKEN',
        "  tokens_per_step ............................... 4096",
        "Loading token... done in 3 s",
        "autograd MaxPool2DWithIndicesBackward0, nn.AdaptiveAvgPool2d, Qwen2VLForConditionalGeneration2, SmoothL1LossBackward0",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
        "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0_APM1_ABV0_ACED0_AF0EM1",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "GPU-5f3c0a92-893a-7cbb-c4cf-81472F89A462 at 0x7FfE1950A86A20F9469CFC6C",
        "models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f249a16976918f6564b8830bc894c89659",
        "flash_attn-2.5.8+cu122torch2.3cxx11abiFALSE-cp310-cp310-linux_x86_64.whl",
        "/runs/Xy7PqLm3RtBv9KdWz2NcQ8sF/step_100.pt and ckpt/Xy7PqLm3RtBv9KdWz2NcQ8sF/step_100.pt",
        "mount 10.0.0.1@tcp:/fs: scratch-OST0001-osc-ffff8a1b2c3d4e5f was lost",
        "nvcr.io/nvidia/pytorch:24.05-py3@sha256:0a1b and myimage:24.05-py3@sha256:0a1b, train.py:12:DEBUG:root:loaded",
        "c = Client(address, authkey=process.current_process().authkey)",
        "RuntimeError: AuthenticationError('no route to host node17')",
    ],
)
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert redact.text(line) == line


def test_a_known_value_is_hidden_in_every_form_under_any_name() -> None:
    value = 'p"w/Z+9 é-77'
    known = redact.KnownSecrets([value, "short", "default"])
    for form in (
        value,
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        quote(value, safe=""),
        value.encode().hex(),
        *(base64.b64encode((before + value + "|more").encode()).decode() for before in ("", "u", "us", "use")),
        base64.urlsafe_b64encode(f"x:{value}".encode()).decode(),
    ):
        output = redact.text(f"layer {form} end", known)
        assert form not in output
        assert secret_forms.MARK in output
    assert redact.text("a short default", known) == "a short default", "what is a word of ordinary text is no secret by its value"


def test_a_document_keeps_its_form() -> None:
    document = redact.document(
        {
            "api_key": CANARY,
            "auth": {"user": [CANARY, 5]},
            "token": 7,
            "argv": ["train.py", "--hf-token", CANARY, "--lr", "1"],
            "fields": [["pid", "7"], ["password", CANARY]],
            "mixed": [1, {"log": f"token={CANARY}"}],
            "lr": 0.1,
            "none": None,
            "env": [{"name": "API_KEY", "value": CANARY}, {"name": "LANG", "value": "C"}, {"key": "dbPwd", "value": CANARY}],
            "made": {"kind": "Secret", "metadata": {"name": "hf"}, "data": {"hf": CANARY}},
            "shell": ["mysql", "-ubob", f"-p{CANARY}", "runs"],
        }
    )
    assert CANARY not in json.dumps(document)
    assert (document["token"], document["lr"], document["none"], document["mixed"][0], document["fields"][0]) == (
        7,
        0.1,
        None,
        1,
        ["pid", "7"],
    )
    assert document["argv"][0:2] == ["train.py", "--hf-token"]
    assert document["auth"]["user"][1] == 5
    assert document["env"][1]["value"] == "C"
    assert document["made"]["metadata"] == {"name": "hf"}
    assert (document["shell"][0], document["shell"][3]) == ("mysql", "runs")


@pytest.mark.bench
@pytest.mark.parametrize(
    "line",
    few(
        [
            "x" * 100_000,
            "a-" * 50_000,
            "token" * 20_000,
            " " * 100_000,
            "a://" * 25_000,
            "x=" * 50_000,
            'token="' * 15_000,
            "token=|" + "\n" * 100_000,
            "Cookie: " * 12_400,
        ],
        3,
    ),
)
def test_a_long_line_costs_no_more_than_its_length(line: str) -> None:
    with costs_at_most(0.4):
        redact.text(line)


def test_a_digest_cannot_be_searched_without_the_key_that_made_it() -> None:
    password = "Winter2026!"  # noqa: S105  of the kind that stands in a dictionary
    output = redact.digest(password)
    assert output == redact.text(f"password={password}").removeprefix("password="), "equal values have equal digests"
    digest_text = output.removeprefix(secret_forms.MARK).removesuffix(">")
    for name in hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}:
        assert digest_text not in hashlib.new(name, password.encode()).hexdigest(), name
    program = f"from supervisor.classify import redact; print(redact.digest({password!r}))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert other.stdout.strip() != output, "another process, that was given no key, makes another digest"


def test_a_digest_without_a_key_of_a_whole_command_is_hidden_too() -> None:
    row = {
        "kind": "run",
        "body": {"command": ["train", "--token", "hunter2"], "command_digest": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4"},
    }
    assert redact.document(row)["body"]["command_digest"] == redact.digest("e3b0c44298fc1c149afbf4c8996fb92427ae41e4")
