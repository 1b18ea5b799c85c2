"""What a compiled program does, read from its text: loops, branches, kernels, collectives."""

from pathlib import Path

import pytest

from fire_lm.errors import RunFailed
from fire_lm.preflight import bundles
from fire_lm.preflight.hlo import Program, array_bytes, group_size, split_shape

TEXT = (Path(__file__).parent / "golden" / "small_program.hlo.txt").read_text()


def test_a_loop_runs_its_body_as_often_as_its_condition_says():
    runs = Program(TEXT).runs()
    assert sum(run.times * run.instruction.cycles for run in runs) == 12 * 100 + 7
    assert {run.times for run in runs if run.instruction.name == "work"} == {12}
    assert Program(TEXT.replace("constant(12)", "constant(3)")).runs()[2].times == 3


def test_of_branches_that_with_kernels_counts_and_else_the_longest():
    kernels = [r for r in Program(TEXT).runs() if r.instruction.kernel]
    assert [(r.instruction.kernel, r.times) for r in kernels] == [("fire_lm_attention_forward", 12)]
    without = Program(TEXT.replace('custom_call_target="tpu_custom_call"', "")).runs()
    assert sum(run.times * run.instruction.cycles for run in without) == 12 * (100 + 10**6) + 7


def test_collectives_also_within_fusions():
    found = {c.kind: (c.bytes, c.devices, c.times) for c in Program(TEXT).collectives()}
    assert found == {
        "all-gather": (16 * 4 * 2, 16, 12),
        "reduce-scatter": (64 * 8 * 4, 4, 12),
        "collective-permute": (16, 2, 1),
    }
    sources = {c.kind: c.source for c in Program(TEXT).collectives()}
    assert sources["reduce-scatter"] == "jit(step)/gradient"


def test_a_loop_of_unknown_length_is_refused():
    with pytest.raises(RunFailed, match="loop whose length is not known"):
        Program(TEXT.replace("direction=LT", "direction=NE")).runs()
    with pytest.raises(RunFailed, match="no entry"):
        Program("HloModule empty")


def test_shapes_and_groups():
    assert split_shape("(f32[2]{0:T(8)}, (s32[], u8[3])) while(%x), body=%b") == (
        "(f32[2]{0:T(8)}, (s32[], u8[3]))",
        "while(%x), body=%b",
    )
    assert array_bytes("(f32[2,3]{1,0:T(8,128)}, bf16[], pred[4], s4[2])") == [24, 2, 4, 1]
    assert group_size("replica_groups=[8,16]<=[128]") == 16
    assert group_size("replica_groups={{0,1,2}}") == 3
    mesh = "replica_groups=mesh['a'=2,'b'=3,'c'=5] {'a','c'}, use_global_device_ids=true"
    assert group_size(mesh) == 10


def test_kernels_of_the_same_code_are_scheduled_once(tmp_path):
    """In layers that are written out, one schedule serves all."""
    code = '{{"custom_call_config":{{"body":"{}","serialization_format":"1"}}}}'
    calls = [
        f"  %fire_lm_attention_forward.{number} = bf16[2,4]{{1,0}} custom-call(%input), "
        f'custom_call_target="tpu_custom_call", backend_config={code.format(body)}'
        for number, body in ((1, "AAAA"), (11, "AAAA"), (12, "BBBB"))
    ]
    text = TEXT.replace("  %loop =", "\n".join([*calls, "  %loop ="]))
    codes = [run.instruction.kernel_code for run in Program(text).runs() if run.instruction.kernel]
    assert codes[:3] == ["AAAA", "AAAA", "BBBB"]

    def schedule(name, bundles):
        lines = "".join(f"{number:#x}   :  {{ nop }}\n" for number in range(bundles))
        (tmp_path / f"17-{name}-00-schedule-analysis_final_bundles.txt").write_text("none")
        (tmp_path / f"17-{name}-01-final_bundles.txt").write_text(lines)

    schedule("fire_lm_attention_forward.11", 5)
    schedule("fire_lm_attention_forward.12", 7)
    of_both = ("fire_lm_attention_forward.1", "fire_lm_attention_forward.11")
    assert bundles.longest(bundles.read(tmp_path, *of_both)) == 5
    assert bundles.longest(bundles.read(tmp_path, "fire_lm_attention_forward.12")) == 7
    for names in (("fire_lm_attention_forward.1",), ("fire_lm_attention_forward",)):
        with pytest.raises(RunFailed, match="schedules of fire_lm_attention_forward"):
            bundles.read(tmp_path, *names)
