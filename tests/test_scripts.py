"""scripts/env.sh, quickstart and test: usage errors, and when .venv is made, kept or refused.

The bootstrap runs on a copy with a stand-in for uv that only records how it is called, so that
nothing is installed here. scripts/test itself tests the real bootstrap.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

UV = """#!/bin/sh
echo "$*" >> "{log}"
case "$1 {broken}" in "pip yes") echo "no such wheel"; exit 7 ;; esac
for last; do :; done
case "$1 $last" in
  venv*interop) "{python}" -m venv --without-pip "$last" ;;
  venv*) mkdir -p "{tree}/.venv/bin"; ln -sf "{python}" "{tree}/.venv/bin/python" ;;
esac
"""


class Tree:
    """A folder with the scripts, a lock, a project file, and a stand-in for uv on PATH."""

    def __init__(self, folder: Path):
        self.root, self.bin, self.log = folder / "tree", folder / "bin", folder / "log"
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        (self.root / "requirements.lock").write_text("a==1\n")
        extras = 'hf = ["b"]\nlm-eval = ["c==1"]\nwandb = ["d==2"]\n'
        (self.root / "pyproject.toml").write_text(f"[project.optional-dependencies]\n{extras}")
        self.set_uv(broken=False)

    def set_uv(self, broken: bool):
        uv = self.bin / "uv"
        uv.write_text(
            UV.format(
                log=self.log,
                tree=self.root,
                python=sys.executable,
                broken="yes" if broken else "no",
            )
        )
        uv.chmod(0o755)

    def bootstrap(self, more: str = "", **environment: str) -> tuple[int, str, list[str]]:
        """Run it and `more`; return the exit code, the output and the calls to uv.

        An install is represented by its last argument but one.
        """
        self.log.write_text("")
        done = subprocess.run(
            [
                "bash",
                "-c",
                f'set -euo pipefail; source "{self.root}/scripts/env.sh"; bootstrap{more}',
            ],
            env={"PYTHON": sys.executable, **os.environ, **environment}
            | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        asked = []
        for line in self.log.read_text().splitlines():
            asked.append("venv" if line.startswith("venv") else line.split()[-2])
        return done.returncode, done.stdout, asked


EVERYTHING = ["venv", "-r", "-e"]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_installs_once(tree):
    code, output, asked = tree.bootstrap()
    assert (code, asked) == (0, EVERYTHING), output
    assert tree.bootstrap()[::2] == (0, [])


def test_a_changed_lock_installs_everything_again(tree):
    tree.bootstrap()
    (tree.root / "requirements.lock").write_text("a==2\n")
    stale = tree.root / ".venv" / "stale"
    stale.touch()
    assert tree.bootstrap()[::2] == (0, EVERYTHING)
    assert not stale.exists()


def test_a_changed_project_file_installs_only_the_project(tree):
    tree.bootstrap()
    (tree.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert tree.bootstrap()[::2] == (0, ["-e"])
    assert tree.bootstrap()[::2] == (0, [])


def test_a_moved_tree_installs_everything_again(tree):
    tree.bootstrap()
    tree.root = tree.root.rename(tree.root.parent / "moved")
    tree.set_uv(broken=False)
    assert tree.bootstrap()[::2] == (0, EVERYTHING)


def test_a_failed_install_is_told_and_not_taken_for_whole(tree):
    tree.set_uv(broken=True)
    code, output, _ = tree.bootstrap()
    assert code == 1 and "no such wheel" in output and "exit code 7" in output
    tree.set_uv(broken=False)
    assert tree.bootstrap()[::2] == (0, EVERYTHING)


SCRIPTS = ("docs", "quickstart", "test")
INTEROP = ["venv", "c==1"]  # the lock's packages, torch and others, and the extras b, c and d


def test_torch_is_installed_once_over_the_environment(tree):
    (tree.root / "requirements.lock").write_text("a==1 \\\n    --hash=sha256:00\n")
    code, output, asked = tree.bootstrap("; bootstrap_interop")
    assert (code, asked) == (0, [*EVERYTHING, *INTEROP]), output
    (found,) = (tree.root / ".venv/interop").rglob("over_venv.pth")
    seen = found.parent.relative_to(tree.root / ".venv/interop")
    assert f"addsitedir('{tree.root / '.venv' / seen}')" in found.read_text()
    assert (tree.root / ".venv/interop/constraints.txt").read_text() == "a==1\n"
    assert tree.bootstrap("; bootstrap_interop")[::2] == (0, [])
    (tree.root / "pyproject.toml").write_text(
        (tree.root / "pyproject.toml").read_text().replace("c==1", "c==2")
    )
    assert tree.bootstrap("; bootstrap_interop")[::2] == (0, ["-e", "venv", "c==2"])


def test_torch_that_cannot_be_installed_is_told_by_the_exit_code(tree):
    """CI then skips these tests, and the next start tries again."""
    assert tree.bootstrap()[0] == 0
    tree.set_uv(broken=True)
    code, output, _ = tree.bootstrap("; bootstrap_interop")
    assert code == 3 and "no such wheel" in output and "could not be installed" in output
    tree.set_uv(broken=False)
    assert tree.bootstrap("; bootstrap_interop")[::2] == (0, INTEROP)


def test_an_install_in_progress_is_left_alone(tree):
    (tree.root / ".venv").mkdir()
    (tree.root / ".venv" / ".fire_lm_installing").write_text(str(os.getpid()))
    code, output, asked = tree.bootstrap()
    assert (code, asked) == (1, []) and f"Process {os.getpid()}" in output


def test_a_foreign_environment_is_refused_untouched(tree):
    (tree.root / ".venv").mkdir()
    (tree.root / ".venv" / "pyvenv.cfg").write_text("theirs")
    code, output, asked = tree.bootstrap()
    assert (code, asked) == (2, []) and "did not create it" in output
    assert [path.name for path in (tree.root / ".venv").iterdir()] == ["pyvenv.cfg"]


def test_a_linked_environment_is_refused_untouched(tree):
    """Another checkout's environment must not lose its stamp."""
    theirs = tree.root.parent / "theirs"
    theirs.mkdir()
    (theirs / ".fire_lm_stamp").write_text("theirs")
    (tree.root / ".venv").symlink_to(theirs)
    code, output, asked = tree.bootstrap()
    assert (code, asked) == (2, []) and f"is a link to {theirs}" in output
    assert (theirs / ".fire_lm_stamp").read_text() == "theirs"


def test_an_unfit_python_is_refused(tree):
    old = tree.bin / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    code, output, asked = tree.bootstrap(PYTHON=str(old))
    assert (code, asked) == (2, []) and "3.11" in output and str(old) in output


@pytest.mark.parametrize(
    "script, arguments, code, told",
    [
        *((script, ["--help"], 0, f"usage: scripts/{script}") for script in SCRIPTS),
        *((script, ["--nonsense"], 2, "--nonsense") for script in SCRIPTS),
        ("quickstart", ["--steps=0"], 2, "--steps=0: it must be a whole number above 0"),
        ("quickstart", ["--steps", "1e3"], 2, "--steps=1e3: it must be"),
        ("quickstart", ["--workdir=gs://b/runs", "nonsense"], 2, "must be a local folder"),
        ("quickstart", ["fire", "nonsense"], 2, "There is no configs/positions/nonsense.gin"),
        ("test", ["--encoding", "nonsense"], 2, "There is no configs/positions/nonsense.gin"),
        ("test", ["--encoding"], 2, "--encoding needs a NAME"),
        ("test", ["--ci", "--encoding=fire"], 2, "exclude each other"),
    ],
)
def test_arguments_are_checked_first(script, arguments, code, told):
    done = subprocess.run(
        [str(ROOT / "scripts" / script), *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code and told in (done.stderr if code else done.stdout), done.stderr
