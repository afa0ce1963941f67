"""`python -m checkpointing verify|latest|push|restore`: the commands of `supervise checkpoints` that need no job."""

from __future__ import annotations

import argparse
import sys

from checkpointing.command_line.output import Output
from checkpointing.model import CheckpointingError

_FAILED = 1
_PART_MIB = range(5, 4097)  # S3 takes no smaller part, and not more than 10,000 of them


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0; 1 where a checkpoint is not good or nothing was found; 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="python -m checkpointing", description="Look at checkpoints, and copy them to a mirror.")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on a line")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="check whether each checkpoint is whole; runs no pickle, changes nothing")
    verify.add_argument("paths", nargs="+", metavar="PATH")
    latest = commands.add_parser("latest", help="print which checkpoint of a directory a resume would take")
    latest.add_argument("directory", metavar="DIRECTORY")
    push = commands.add_parser("push", help="copy checkpoints to a mirror")
    push.add_argument("paths", nargs="+", metavar="PATH")
    restore = commands.add_parser("restore", help="bring the newest whole checkpoint of a job back from a mirror")
    restore.add_argument("--to", required=True, metavar="DIRECTORY")
    for command in (push, restore):
        command.add_argument("--mirror", required=True, metavar="URL", help="s3://BUCKET/PREFIX, file:///DIRECTORY or a path")
        command.add_argument("--job", metavar="NAME", help="whose checkpoints in the mirror (default: default)")
        s3 = command.add_argument_group(
            "S3", "without these, the environment (AWS_…) and the files in ~/.aws hold, as for any program with boto3"
        )
        s3.add_argument("--endpoint", default="", metavar="URL", help="address of the S3 server, if it is not Amazon's")
        s3.add_argument("--region", default="", metavar="NAME", help="region of the bucket")
        s3.add_argument("--profile", default="", metavar="NAME", help="profile in ~/.aws whose keys, region and endpoint are used")
        s3.add_argument("--path-style", action="store_true", default=None, help="put the bucket into the path instead of the host name")
    push.add_argument(
        "--part-mib", type=_part_mib, metavar="N", help="size in MiB of the parts that are checked and sent, 5 to 4096 (default: 32)"
    )
    args = parser.parse_args(words)
    try:
        return _run(args, Output(as_json=args.json))
    except CheckpointingError as error:
        print(f"checkpointing: {error.message}\ncheckpointing: {error.hint}", file=sys.stderr)  # noqa: T201 -- a command
    except OSError as error:
        print(f"checkpointing: cannot read or write a checkpoint: {error}", file=sys.stderr)  # noqa: T201 -- a command
    return _FAILED


def _run(args: argparse.Namespace, out: Output) -> int:
    if args.command in ("verify", "latest"):
        from checkpointing.command_line import verdicts  # noqa: PLC0415 -- for these commands only

        return verdicts.verify(args.paths, out) if args.command == "verify" else verdicts.latest(args.directory, out)
    from checkpointing.command_line import mirrors  # noqa: PLC0415 -- loads what speaks to S3
    from checkpointing.manifest.digest import PART_BYTES  # noqa: PLC0415 -- as above
    from checkpointing.mirror.backends import S3Options  # noqa: PLC0415 -- as above
    from checkpointing.mirror.client import DEFAULT_JOB, backend_of  # noqa: PLC0415 -- as above
    from checkpointing.mirror.source import TransferControl  # noqa: PLC0415 -- as above

    options = S3Options(endpoint=args.endpoint, region=args.region, profile=args.profile, path_style=args.path_style)
    backends, job = [backend_of(args.mirror, options)], args.job or DEFAULT_JOB
    if args.command == "push":
        part_bytes = PART_BYTES if args.part_mib is None else args.part_mib << 20
        return mirrors.push(args.paths, backends, job, out, control=TransferControl(), part_bytes=part_bytes)
    return mirrors.restore_newest(backends, job, out, into=args.to)


def _part_mib(text: str) -> int:
    """Return the size of a part. Raises ArgumentTypeError outside of S3's limits."""
    if not text.isdecimal() or int(text) not in _PART_MIB:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {_PART_MIB[0]} to {_PART_MIB[-1]}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
