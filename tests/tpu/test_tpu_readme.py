"""tpu/README.md: our commands run as dry runs, and its table follows from docs/preflight.md's.

The shell code that we write passes shellcheck.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tpu_cloud import WHERE, pretrain, run

from tpu import __main__ as tpu

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "tpu" / "README.md").read_text()


def commands() -> list[str]:
    blocks = re.findall(r"^ *```\n(.*?)^ *```$", TEXT, flags=re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if "python -m tpu" in line]


@pytest.mark.parametrize("line", commands())
def test_every_command_has_a_dry_run(line, cloud, capsys):
    arguments = shlex.split(line.replace("BUCKET", "my-bucket"))[3:]
    if "--local" not in arguments:
        arguments += WHERE[1:]
    assert tpu.main([*arguments, "--dry_run"]) == 0, capsys.readouterr().err
    assert not cloud.changes()
    said = capsys.readouterr().out
    assert re.search(r"gcloud|kubectl|fire_lm|JobSet", said), said
    if arguments[0] != "render":  # its output is a manifest
        subprocess.run(["bash", "-n"], input=said, text=True, check=True)
        outside = re.sub(r"<<'END'\n.*?END$", "", said, flags=re.DOTALL | re.MULTILINE)
        programs = {line.split()[0] for line in outside.splitlines() if line}
        assert programs <= {"#", "##", "gcloud", "kubectl", "ssh-add", sys.executable}, programs


def test_a_command_in_a_message_can_be_pasted(cloud, capsys):
    cloud.plan(containers=[["running"]])
    assert pretrain("--detach") == 0 and pretrain("--gin.TRAIN_STEPS=900000") == 2
    assert run("stop", "fire-125m") == 0
    cloud.plan(images=[])
    assert pretrain() == 2
    told = "".join(capsys.readouterr())
    commands = set(re.findall(r"`(python -m tpu [^`]*)`", told))
    assert {command.split()[3] for command in commands} == {"delete", "image", "stop"}
    for command in commands:
        assert tpu.main([*shlex.split(command)[3:], "--dry_run"]) == 0, command


def test_every_verb_is_shown():
    verbs = {line.split()[3] for line in commands()}
    listed = re.search(r"\{([a-z,]+)\}", tpu.build_parser().format_help())
    assert listed is not None
    known = set(listed[1].split(","))
    by_itself = {"create", "setup"}  # `pretrain` runs these
    assert verbs == known - by_itself


def shellcheck(*files: Path) -> None:
    program = Path(sys.executable).parent / "shellcheck"
    options = ("--external-sources", "--source-path=SCRIPTDIR", "--severity=info")
    subprocess.run([program, *options, *files], check=True)


def test_shell_passes_shellcheck(cloud, tmp_path):
    """Our scripts pass, and so do the commands for the hosts' shells."""
    shellcheck(*(ROOT / "scripts" / name for name in ("env.sh", "quickstart", "test")))
    shellcheck(ROOT / ".ci" / "run")
    assert pretrain() == 0
    told = [a.removeprefix("--command=") for call in cloud.calls("tpu-vm", "ssh") for a in call]
    told = [command for command in told if not command.startswith("-")][4:]
    assert len(told) > 4
    for number, command in enumerate(dict.fromkeys(told)):
        if " " in command:
            script = tmp_path / f"{number}.sh"
            script.write_text(f"#!/bin/bash\n{command}\n")
            shellcheck(script)


def test_shellcheck_sees_what_is_wrong(tmp_path):
    (tmp_path / "x.sh").write_text("#!/bin/bash\nrm -rf $1/x\n")
    with pytest.raises(subprocess.CalledProcessError):
        shellcheck(tmp_path / "x.sh")
