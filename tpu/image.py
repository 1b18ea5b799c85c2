"""The container image, which by default is tagged with the commit whose code the hosts run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ml_collections import ConfigDict

from fire_lm.errors import UserError
from tpu.cluster import command
from tpu.commands import Calls, NotFound

ROOT = Path(__file__).parent.parent


def tagged(cluster: ConfigDict, root: Path = ROOT) -> str:
    """Return the image with a tag: the cluster file's tag or, by default, this checkout's commit.

    Raises:
      UserError: There is no commit.
    """
    image: str = cluster.image
    if has_tag(image):
        return image
    return f"{image}:{_of_commit(image, root, 'rev-parse', '--short=12', 'HEAD')}"


def check_committed(cluster: ConfigDict, root: Path = ROOT) -> None:
    """Raise UserError if the image of this commit lacks changes, unless the cluster file has a tag.

    Cluster files may have changed, because the hosts do not read them.
    """
    image: str = cluster.image
    if has_tag(image):
        return
    everything = (".", ":(exclude)tpu/clusters")
    changed = _of_commit(image, root, "status", "--porcelain", "--", *everything)
    if changed:
        first = changed.splitlines()[0].split(maxsplit=1)[1]
        raise UserError(
            f"{first} is not committed, so the hosts would not run this checkout's code\n"
            f"commit it and run {command('image', cluster)}, or set --cluster.image={image}:TAG"
        )


def _of_commit(image: str, root: Path, *arguments: str) -> str:
    try:
        return _git(root, *arguments)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"{root} is not a git checkout, so there is no commit to use as the image's tag\n"
            f"give the image a tag: --cluster.image={image}:TAG"
        ) from error


def check_registry(image: str) -> None:
    """Raise UserError if the image is not in a registry from which hosts can pull it."""
    if "." not in image.partition("/")[0]:
        raise UserError(
            f"--cluster.image is {image}, which is not in a registry: the hosts cannot pull it\n"
            "write REGION-docker.pkg.dev/PROJECT/REPOSITORY/fire_lm"
        )


def contains(path: str, root: Path = ROOT) -> bool:
    """Return whether hosts find a path, relative to the repository's root, in the image."""
    full = (root / path).resolve()
    if Path(path).is_absolute() or not full.exists() or not full.is_relative_to(root.resolve()):
        return False
    left_out = (ROOT / "tpu" / "Dockerfile.dockerignore").read_text().split()
    if not set(full.relative_to(root.resolve()).parts[:1]).isdisjoint(left_out):
        return False
    # `gcloud builds submit` leaves out what git ignores.
    try:
        _git(root, "check-ignore", "--quiet", str(full))
    except (OSError, subprocess.CalledProcessError):  # git is missing, or does not ignore the path
        return True
    return False


def has_tag(image: str) -> bool:
    return ":" in image.rpartition("/")[2] or "@" in image


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
            f"there is no image {image}\nbuild it with {command('image', cluster)}"
        ) from error


def build(image: str, cluster: ConfigDict, calls: Calls) -> None:
    """Build the image with Cloud Build."""
    calls.stream(
        [
            *("gcloud", "builds", "submit", str(ROOT), "--config=tpu/cloudbuild.yaml"),
            *(f"--substitutions=_IMAGE={image}", f"--project={cluster.project}"),
        ]
    )
