"""What a compiled program does, read from its text: loops, branches, kernels, collectives."""

import pytest

from fire_lm.errors import RunFailed
from fire_lm.preflight.hlo import Program, array_bytes, group_size, split_shape

TEXT = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%all-reduce-scatter.1 (p: f32[64,8]) -> f32[4,8] {
  %p = f32[64,8]{1,0} parameter(0)
  %all-reduce.9 = f32[64,8]{1,0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %slice.1 = f32[4,8]{1,0} dynamic-slice(%all-reduce.9)
}

%condition (state: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(12)
  %i = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%kernel_branch (p.1: bf16[2,4]) -> bf16[2,4] {
  ROOT %fire_lm_attention_forward.2 = bf16[2,4]{1,0} custom-call(%p.1), custom_call_target="tpu_custom_call"
}

%slow_branch (p.2: bf16[2,4]) -> bf16[2,4] {
  ROOT %slow = bf16[2,4]{1,0} fusion(%p.2), kind=kLoop, calls=%add, backend_config={"estimated_cycles":"1000000"}
}

%body (state.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %work = f32[8]{0:T(8,128)(2,1)S(3)} fusion(%state.1), kind=kLoop, calls=%add, metadata={op_name="jit(step)/layer/mul"}, backend_config={"window_config":{"estimated_cycles":"100"}}
  %gathered = bf16[16,4]{1,0} all-gather(%work), replica_groups=mesh['axis_0'=16,'axis_1'=1,'axis_2'=8], device_ids=([8,16]T(1,0)) {'axis_0'}, dimensions={0}
  %scattered = f32[4,8] fusion(%work), kind=kCustom, calls=%all-reduce-scatter.1, metadata={op_name="jit(step)/gradient"}
  %chosen = bf16[2,4] conditional(%p, %a, %b), branch_computations={%slow_branch, %kernel_branch}
  ROOT %next = (s32[], f32[8]) tuple(%i, %work)
}

ENTRY %main (input: f32[8]) -> f32[8] {
  %input = f32[8]{0} parameter(0)
  %loop = (s32[]{:T(128)}, f32[8]{0}) while(%start), condition=%condition, body=%body
  %permuted = (f32[2,2], f32[2,2], u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1}}
  %done = f32[2,2] collective-permute-done(%permuted)
  ROOT %out = f32[8]{0} copy(%loop), backend_config={"estimated_cycles":"7"}
}
"""


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
