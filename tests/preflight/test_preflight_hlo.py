"""What a compiled program does, read from its text: loops, branches, kernels, collectives."""

import collections
import itertools
from pathlib import Path

import pytest

from fire_lm.errors import RunFailed
from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight import bundles, estimate
from fire_lm.preflight.estimate import links_of, seconds_of
from fire_lm.preflight.hlo import Collective, Program, array_bytes, first_group, split_shape
from fire_lm.preflight.time_by_module import add, by_part

TEXT = (Path(__file__).parents[1] / "golden" / "small_program.hlo.txt").read_text()


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
    found = {c.kind: (c.bytes, len(c.group), c.times) for c in Program(TEXT).collectives()}
    assert found == {
        "all-gather": (16 * 4 * 2, 16, 12),
        "reduce-scatter": (64 * 8 * 4, 4, 12),
        "collective-permute": (16, 2, 1),
    }


def test_a_loop_of_unknown_length_is_refused():
    with pytest.raises(RunFailed, match="number of iterations of a loop is unknown"):
        Program(TEXT.replace("direction=LT", "direction=NE")).runs()
    with pytest.raises(RunFailed, match="no entry"):
        Program("HloModule empty")


def test_one_round_of_a_loop_that_is_named():
    """One iteration consists of the loop's condition and its body."""
    text = TEXT.replace("body=%body", 'body=%body, metadata={op_name="jit(step)/new_tokens/while"}')
    program = Program(text)
    program.enter("new_tokens")
    runs = program.runs()
    assert sum(run.instruction.cycles for run in runs) == 100
    assert {run.times for run in runs} == {1} and "less" in {run.instruction.name for run in runs}
    assert {c.kind: c.times for c in program.collectives()} == {
        "all-gather": 1,
        "reduce-scatter": 1,
    }
    with pytest.raises(RunFailed, match="one loop named new_tokens in the program, but found 0"):
        Program(TEXT).enter("new_tokens")


def test_collectives_of_a_condition_count():
    """An example is a collective that checks whether the sequences on all devices have ended."""
    text = TEXT.replace(
        "  %i = s32[]", "  %ended = pred[] all-reduce(%x), replica_groups={}\n  %i = s32[]", 1
    )
    assert {c.kind: c.times for c in Program(text).collectives()}["all-reduce"] == 12


def test_shapes_and_groups():
    assert split_shape("(f32[2]{0:T(8)}, (s32[], u8[3])) while(%x), body=%b") == (
        "(f32[2]{0:T(8)}, (s32[], u8[3]))",
        "while(%x), body=%b",
    )
    assert array_bytes("(f32[2,3]{1,0:T(8,128)}, bf16[], pred[4], s4[2])") == [24, 2, 4, 1]
    assert first_group("replica_groups=[8,16]<=[128]", 128) == tuple(range(16))
    assert first_group("replica_groups=[2,4]<=[4,2]T(1,0)", 8) == (0, 2, 4, 6)
    assert first_group("replica_groups={{0,1,2},{3,4,5}}", 6) == (0, 1, 2)
    assert first_group("replica_groups={}", 4) == (0, 1, 2, 3)
    assert first_group("source_target_pairs={{3,1}}", 4) == (3, 1)
    mesh = "replica_groups=mesh['a'=2,'b'=3,'c'=5] {'a','c'}, use_global_device_ids=true"
    assert first_group(mesh, 30) == (0, 1, 2, 3, 4, 15, 16, 17, 18, 19)
    turned = "replica_groups=mesh['a'=16,'b'=8], device_ids=([8,16]T(1,0)) {'b'}, dimensions={0}"
    assert first_group(turned, 128) == tuple(range(0, 128, 16))


def test_kernels_of_the_same_code_are_scheduled_once(tmp_path):
    """When layers are unrolled, one schedule serves all of them."""
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
    of_both = ["fire_lm_attention_forward.1", "fire_lm_attention_forward.11"]
    assert [bundles.longest(found) for found in bundles.schedules_of(tmp_path, of_both)] == [5]
    assert bundles.longest(bundles.read(tmp_path, "fire_lm_attention_forward.12")) == 7
    with pytest.raises(
        RunFailed, match="one schedule for fire_lm_attention_forward, but .* wrote 2"
    ):
        bundles.read(tmp_path, "fire_lm_attention_forward")
    with pytest.raises(RunFailed, match="no schedule for fire_lm_attention_forward.1"):
        bundles.read(tmp_path, "fire_lm_attention_forward.1")


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
        ("jvp(Decoder)/layers/tpu_attention/shard_map/stack", "tables and layout for kernels"),
        ("jvp(Decoder)/layers/memory/while/body/add", "memory of a mixer"),
        ("jvp(Decoder)/layers/add", "encoding, residual stream"),
        (
            "while/body/closed_call/jvp(Decoder)/while/body/jit(dynamic_update_index_in_dim)/"
            "dynamic_update_slice",
            "stacks of layers in a loop",
        ),
        ("transpose(jvp(Decoder))/while/body/dynamic_slice", "stacks of layers in a loop"),
        (
            "transpose(jvp(Decoder))/Decoder.read/while/body/jit(dynamic_index_in_dim)/"
            "dynamic_slice",
            "stacks of layers in a loop",
        ),
        ("jvp(Decoder)/while/body/closed_call/layers/mlp_in/dot_general", "MLP"),
        ("while/body/closed_call/jvp(Decoder)/jit(_take)/gather", "embedding"),
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


def test_a_collective_that_runs_beside_others_counts_once():
    """On v5e it starts in one fusion, appears in each that it overlaps, and ends in another."""
    gather = "all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}"
    pieces = ("async_collective_fusion.1", "async_collective_fusion.2", "gather_start")
    computations = "".join(
        f"%{name} (p: f32[2]) -> f32[8] {{\n  ROOT %g = f32[8]{{0}} {gather}\n}}\n\n"
        for name in pieces
    )
    calls = "".join(
        f"  %{opened} = f32[8] fusion(%input), kind=kCustom, calls=%{name}\n"
        for opened, name in zip(("a", "b", "async-collective-start.3"), pieces, strict=True)
    )
    done = "  %async-collective-done.3 = f32[8] fusion(%input), kind=kCustom, calls=%gather_start\n"
    text = TEXT.replace("%add (x", computations + "%add (x", 1)
    text = text.replace("  %loop =", calls + done + "  %loop =", 1)
    assert [c.bytes for c in Program(text).collectives() if c.group == (0, 1, 2, 3)][:1] == [32]
    gathers = [c for c in Program(text).collectives() if c.kind == "all-gather"]
    assert len(gathers) == 1 + 1  # one more in the loop


def overlapping() -> str:
    """Return a program in which a collective overlaps 1,400 cycles, and another one 150.

    One of the fusions, of 200 cycles, overlaps both.
    """
    gather = "all-gather(%p), channel_id={}, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}"
    parts = {
        "start.7": ("async-collective-start.7", (7,), 0),
        "async_collective_fusion.1": ("a", (7,), 1000),
        "async_collective_fusion.2": ("b", (7,), 300),
        "start.8": ("async-collective-start.8", (8,), 0),
        "async_collective_fusion.3": ("c", (7, 8), 200),
        "done.7": ("async-collective-done.7", (7,), 0),
        "async_collective_fusion.4": ("d", (8,), 50),
        "done.8": ("async-collective-done.8", (8,), 0),
    }
    computations = "".join(
        f"%{name} (p: f32[2]) -> f32[8] {{\n"
        + "".join(f"  %g.{one} = f32[8]{{0}} {gather.format(one)}\n" for one in channels)
        + "}\n\n"
        for name, (_, channels, _) in parts.items()
    )
    calls = "".join(
        f"  %{name} = f32[8] fusion(%input), kind=kCustom, calls=%{called}, "
        f'backend_config={{"estimated_cycles":"{cycles}"}}\n'
        for called, (name, _, cycles) in parts.items()
    )
    text = TEXT.replace("%add (x", computations + "%add (x", 1)
    return text.replace("  %loop =", calls + "  %loop =", 1)


def test_the_work_beside_a_collective_is_that_of_the_fusions_that_contain_it():
    """Other work between these fusions does not count."""
    found = [c.beside for c in Program(overlapping()).collectives() if c.group == (0, 1, 2, 3)]
    assert found[:2] == [1400, 150] and not any(found[2:])


def test_a_collective_overlaps_other_work_for_no_longer_than_it_takes(monkeypatch):
    where = parse_slice("v4-8")
    monkeypatch.setattr(estimate, "seconds_of", lambda *_: 1e-6)
    found = estimate.costs(overlapping(), where, [], lambda *_: 0.0)
    assert found.overlapped == pytest.approx(1e-6 + 150 / where.chip.clock)
    assert found.seconds == pytest.approx(found.xla + found.links - found.overlapped)


@pytest.mark.parametrize(
    "line, size",
    [
        ("(f32[8], f32[4]) all-reduce-start(%a, %b), replica_groups={}", 48),
        ("(f32[2], f32[8]) all-gather-start(%a), replica_groups={}, dimensions={0}", 32),
        ("((f32[2], f32[1]), (f32[8], f32[4])) all-gather-start(%a, %b), replica_groups={}", 48),
        (
            "(f32[8], f32[8], u32[]) collective-permute-start(%a), source_target_pairs={{0,1}}",
            32,
        ),
        ("(bf16[8], u32[], token[]) send(%a, %b), channel_id=3", 16),
    ],
)
def test_bytes_of_what_is_started(line, size):
    text = TEXT.replace("  %loop =", f"  %started = {line}\n  %loop =", 1)
    assert Program(text).collectives()[0].bytes == size


def test_links_are_those_of_the_axes_that_a_group_is_on():
    places = list(itertools.product(range(4), range(4), range(8)))
    fsdp = [place for place in places if place[2] == 0]
    data = [place for place in places if place[:2] == (0, 0)]
    assert links_of(places, (4, 4, 8)) == 6
    assert links_of(fsdp, (4, 4, 8)) == 4 and links_of(data, (4, 4, 8)) == 2
    assert links_of(data[:4], (4, 4, 8)) == 1, "a part of an axis is no ring"
    assert links_of([(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)], (2, 2, 1)) == 2
    square = list(itertools.product(range(8), range(16)))
    assert links_of(square, (8, 16)) == 3, "v5e closes along 16 alone"
    assert links_of([(0, 0, 0)], (2, 2, 1)) == 1


def test_seconds_of_collectives_on_v4():
    """45 GB/s per link, 90% of what Google publishes."""
    where = parse_slice("v4-256")
    device = collections.namedtuple("device", "coords slice_index")
    devices = [device(p, 0) for p in itertools.product(range(4), range(4), range(8))]
    everyone, along_z = tuple(range(128)), tuple(range(8))

    def seconds(kind, group):
        return seconds_of(Collective(kind, 10**9, group, 1), where, devices)

    assert seconds("all-reduce", everyone) == pytest.approx(2 * 127 / 128 / 270)
    assert seconds("all-gather", along_z) == pytest.approx(7 / 8 / 90)
    assert seconds("collective-permute", (0, 1)) == pytest.approx(1 / 45)
    assert seconds("send", (0,)) == pytest.approx(1 / 3.1)
    devices[1] = device(devices[1].coords, 1)
    assert seconds("all-reduce", everyone) == pytest.approx(1 / 3.1)
