"""Rows of a profile find their nodes, whatever the runtime made of the names."""

from layermark.backends._hlo import plain, scopes
from layermark.backends.base import OperatorTime
from layermark.graph import Builder
from layermark.ops import Activation, Add, Conv2d, Norm
from layermark.worker.profile_nodes import moved_bytes, nodes_of, tied


def residual():
    """Two convolutions with norms, and a sum with an activation behind them."""
    build = Builder()
    x = build.input("x", (2, 4, 8, 8))
    norm = build.add("bn1", Norm("batch"), build.add("conv1", Conv2d(4, (1, 1)), x))
    first = build.add("bn1/relu", Activation("relu"), norm)
    second = build.add("bn2", Norm("batch"), build.add("conv2", Conv2d(4, (1, 1)), first))
    return build.graph(build.add("relu", Activation("relu"), build.add("add", Add(), second, first)))


GRAPH = residual()
NAMES = [node.name for node in GRAPH if node.name != "x"]


def row(operator, milliseconds, *names):
    return OperatorTime(operator, 1, milliseconds / 1e3, names)


def by_operator(rows, **given):
    return {each.operator: each for each in tied(rows, GRAPH, **given)}


def test_the_longest_name_in_a_scope_is_the_node():
    assert ("bn1/relu",) == nodes_of(["bn1/relu_nchwc"], NAMES)
    assert ("bn1/relu",) == nodes_of(["train/bn1/relu/relu/max"], NAMES)
    assert ("conv2", "bn2") == nodes_of(["b0/conv2/Conv2D", "b0/bn2/FusedBatchNorm:0"], NAMES)


def test_part_of_a_word_is_no_name():
    assert () == nodes_of(["conv11", "myconv1", "train/mul", "", "/", "//conv", "_"], NAMES)


def test_hostile_names_are_only_compared():
    hostile = ["a.*b", "(", "x/../../etc", "<script>alert(1)</script>", "';--", "\n", "né"]
    for name in hostile:
        assert (name,) == nodes_of([f"jit/{name}/conv"], hostile)
    assert () == nodes_of(["aXXb"], hostile)


def test_nodes_that_nobody_names_belong_to_what_they_were_fused_into():
    found = by_operator([row("one", 3, "bn1/relu_nchwc"), row("two", 2, "bn2_nchwc")])
    assert ("conv1", "bn1", "bn1/relu") == found["one"].node
    assert ("conv2", "bn2", "add", "relu") == found["two"].node
    assert {"Conv2d"} == {each.kind for each in found.values()}
    assert GRAPH.flops("infer") == sum(each.flops for each in found.values())


def test_little_is_concluded_where_much_is_unknown():
    found = by_operator([row("one", 3, "conv1"), row("kernels", 2)])
    assert ("conv1",) == found["one"].node and () == found["kernels"].node
    assert found["kernels"].flops is None


def test_a_node_is_counted_once_in_its_longest_row():
    rows = [row("bias", 1, "conv1"), row("conv", 9, "conv1"), row("rest", 5, *NAMES[1:]), row("Reorder", 99, "conv1")]
    found = by_operator(rows)
    assert found["conv"].flops and found["bias"].flops is None and found["Reorder"].flops is None
    assert ("conv1",) == found["Reorder"].node


def test_a_sum_is_fused_into_the_product_before_it():
    build = Builder()
    x = build.input("x", (2, 4, 8, 8))
    conv, side = build.add("conv", Conv2d(4, (1, 1)), x), build.add("side", Activation("relu"), x)
    graph = build.graph(build.add("add", Add(), conv, side))
    found = {each.operator: each.node for each in tied([row("one", 1, "conv"), row("two", 1, "side")], graph)}
    assert {"one": ("conv", "add"), "two": ("side",)} == found


def test_rows_of_one_operator_and_one_set_of_nodes_are_one():
    (found,) = tied([row("fusion", 1, "add", "relu"), row("fusion", 2, "relu", "add")], GRAPH)[:1]
    assert 2 == found.calls and 0.003 == found.seconds


def test_training_tells_neither_flops_nor_bytes():
    found = by_operator([row("conv", 1, "conv1"), row("update", 1)], mode="train")
    assert found["conv"].flops is None and ("conv1",) == found["conv"].node and "Conv2d" == found["conv"].kind


def test_without_a_graph_there_are_no_nodes():
    assert [()] == [each.node for each in tied([row("conv", 1, "conv1")], None)]


def test_values_inside_of_a_fusion_are_not_moved():
    values, held = 2 * 4 * 8 * 8, sum(each.count for name, each in GRAPH.parameters.items() if "conv1/" in name)
    assert 4 * (2 * values + held) == moved_bytes({"conv1"}, GRAPH) and held >= 16
    together, separate = moved_bytes({"add", "relu"}, GRAPH), moved_bytes({"add"}, GRAPH) + moved_bytes({"relu"}, GRAPH)
    assert 4 * 3 * values == together and 4 * 5 * values == separate


def message(*fields):
    """Fields in the wire format: numbers as varints below 128, anything else as bytes."""
    written = b""
    for number, value in fields:
        if isinstance(value, int):
            written += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            written += varint(number << 3 | 2) + varint(len(content)) + content
    return written


def varint(number):
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def instruction(name, opcode, scope="", *called):
    return message((1, name), (2, opcode), (7, message((2, scope))), *((38, number) for number in called))


def space(module, *computations):
    bodies = [message((5, number), *((2, each) for each in parts)) for number, parts in computations]
    written = message((1, module), *((3, each) for each in bodies))
    metadata = message((5, message((1, 1), (6, message((1, written))))))
    return message((1, message((2, "/host:metadata"), (4, message((1, 1), (2, metadata))))))


def test_a_fusion_has_the_scopes_of_its_parts():
    parts = [
        instruction("mul.1", "multiply", "jit(f)/bn1/mul"),
        instruction("zero", "constant", "jit(f)/elsewhere/max"),
        instruction("max.1", "maximum", "jit(f)/bn1/relu/max"),
    ]
    content = space("jit_f", (7, parts), (8, [instruction("fusion.3", "fusion", "jit(f)/bn1/relu/max", 7)]))
    assert ("f/bn1/mul", "f/bn1/relu/max") == scopes(content)["jit_f", "fusion.3"]


def test_scopes_of_gradients_are_those_of_the_node():
    assert "train/layer1/0/conv1/mul" == plain("jit(train)/transpose(jvp(layer1/0/conv1))/mul")


def test_bytes_that_are_no_message_hold_no_scopes():
    for content in (b"", b"\xff" * 40, bytes(range(256)), b"\x0a\xff\x01"):
        assert {} == scopes(content)
