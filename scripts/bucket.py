"""The program behind scripts/bucket, which runs a command against the server of tests/bucket.py."""

import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bucket import Bucket  # noqa: E402  (The path must be set first.)
from bucket_faults import Fault, parse  # noqa: E402
from bucket_log import table  # noqa: E402


def fault(rule: str) -> Fault:
    try:
        return parse(rule)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def file_name(name: str, is_folder: bool) -> str:
    """Return an object's path within its bucket's folder; `object_name` is the inverse.

    Each part is percent-quoted. A bare "%", which quoting never produces, represents an empty part.
    A "%" is also appended to the name of an object if a folder has the same name.
    """
    parts = [quote(part, safe=" +,=@") for part in name.split("/")]
    parts = [part.replace(".", "%2E") if part in (".", "..") else part or "%" for part in parts]
    return "/".join(parts) + ("%" if is_folder and parts[-1] != "%" else "")


def object_name(file: str) -> str:
    return "/".join(unquote(part.removesuffix("%")) for part in file.split("/"))


def load(bucket: Bucket, folder: Path, names: list[str]) -> None:
    for name in names:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file():
                file = path.relative_to(folder / name).as_posix()
                bucket.put(object_name(file), path.read_bytes(), name)


def save(bucket: Bucket, folder: Path, names: list[str]) -> None:
    """Save each bucket's objects in a new folder, which then replaces the bucket's old folder.

    Other files in `folder` are kept.
    """
    for name in names:
        part = folder / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        objects = bucket.objects_of(name)
        folders = {str(parent) for object_ in objects for parent in PurePosixPath(object_).parents}
        for object_, content in objects.items():
            path = part / file_name(object_, object_ in folders)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        shutil.rmtree(folder / name, ignore_errors=True)
        part.rename(folder / name)


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command, which receives Ctrl-C from the terminal and SIGTERM from this process."""
    # This handler is not inherited: the command has the default one.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    path = shutil.which(command[0])
    if path is None:
        print(f"There is no program {command[0]} on PATH.", file=sys.stderr)
        return 127
    process = subprocess.Popen(command, executable=path, env=environment)
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    code = process.wait()
    return 128 - code if code < 0 else code


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bucket", add_help=False, allow_abbrev=False)
    parser.add_argument("--fault", action="append", type=fault, default=[], metavar="RULE")
    parser.add_argument("--bucket", action="append", metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    given = parser.parse_args()
    if not given.command:
        parser.error("COMMAND is missing; scripts/bucket --help shows an example")
    names = given.bucket or ["bucket"]
    with Bucket(names) as bucket:
        if given.keep:
            load(bucket, given.keep, names)
        bucket.faults = given.fault
        code = run(given.command, bucket.child_environment(retry_ms=None))
        print(f"\n{table(bucket.log.requests)}")
        if given.keep:
            save(bucket, given.keep, names)
        for request in bucket.unknown:
            print(f"The server does not support this request: {request}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
