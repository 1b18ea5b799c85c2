"""What a compiled program does, read from its text: loops, branches, kernels, collectives."""

from pathlib import Path

import pytest

from fire_lm.errors import RunFailed
from fire_lm.preflight import bundles
from fire_lm.preflight.hlo import Program, array_bytes, group_size, split_shape
from fire_lm.preflight.parts import add, by_part

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


def test_cycles_by_part_of_the_model():
    of_mlp = TEXT.replace("jit(step)/layer/mul", "jit(train_step)/jvp(Decoder)/layers/mlp_in/dot")
    assert by_part(Program(of_mlp).runs()) == {"MLP": (12 * 100, 0), "other": (7, 0)}
    again = of_mlp.replace("jvp(Decoder)", "transpose(jvp(Decoder))")
    assert by_part(Program(again).runs())["MLP"] == (0, 12 * 100)
    parts = by_part(Program(again).runs())
    add(parts, "MLP", "jit(train_step)/jvp(Decoder)", 3.5)
    assert parts["MLP"] == (3.5, 12 * 100)


@pytest.mark.parametrize(
    "source, part",
    [
        ("jvp(Decoder)/layers/block_0/query/BTD,DNH->BTNH/dot_general", "query, key, value"),
        ("transpose(jvp(Decoder))/layers/attention_out/reduce_sum", "attention's output"),
        ("jvp(Decoder)/layers/cond/branch_1_fun/shard_map/stack", "tables and layout for kernels"),
        ("jvp(Decoder)/layers/add", "encoding, residual stream"),
        ("transpose(jvp(Decoder))/BTV,BTD->VD/dot_general", "head and loss"),
        ("jvp()/reduce_sum", "head and loss"),
        ("transpose(jvp(Decoder))/jit(_take)/scatter-add", "embedding"),
        ("jvp(Decoder)/final_norm/reduce_sum", "norms"),
        ("add", "optimizer, norm of gradients"),
    ],
)
def test_parts_have_the_names_that_jax_gives(source, part):
    text = TEXT.replace("jit(step)/layer/mul", f"jit(train_step)/{source}")
    assert part in by_part(Program(text).runs())
