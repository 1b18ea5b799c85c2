"""The container image, which by default is tagged with the commit whose code the hosts run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ml_collections import ConfigDict

from fire_lm.errors import UserError
from tpu.commands import Calls, NotFound

ROOT = Path(__file__).parent.parent


def tagged(cluster: ConfigDict, root: Path = ROOT) -> str:
    """Return the image with a tag: the cluster file's tag or, by default, this checkout's commit.

    Raises:
      UserError: There is no commit, or there are uncommitted changes, which no image contains.
    """
    image: str = cluster.image
    if ":" in image.rpartition("/")[2] or "@" in image:
        return image
    try:
        changed = _git(root, "status", "--porcelain")
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"{root} is not a git checkout, so there is no commit to use as the image's tag\n"
            f"give the image a tag: --cluster.image={image}:TAG"
        ) from error
    if changed:
        first = changed.splitlines()[0].split(maxsplit=1)[1]
        raise UserError(
            f"{first} is not committed, so the hosts would not run this checkout's code\n"
            f"commit it and run `python -m tpu image`, or set --cluster.image={image}:TAG"
        )
    return f"{image}:{commit}"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def check(image: str, cluster: ConfigDict, calls: Calls) -> None:
    """Raise UserError if the image has not been built."""
    try:
        calls.read(
            ["gcloud", "artifacts", "docker", "images", "describe", image, "--format=json"]
            + [f"--project={cluster.project}"]
        )
    except NotFound as error:
        raise UserError(
            f"there is no image {image}\nbuild it with `python -m tpu image`"
        ) from error


def build(image: str, cluster: ConfigDict, calls: Calls) -> None:
    """Build the image with Cloud Build."""
    calls.stream(
        [
            *("gcloud", "builds", "submit", str(ROOT), "--config=tpu/cloudbuild.yaml"),
            *(f"--substitutions=_IMAGE={image}", f"--project={cluster.project}"),
        ]
    )
