"""One program in every form that XLA's readers read: a product, a loop of five trips, a fusion and a reduction."""

from typing import Any

HLO = """HloModule jit_f, entry_computation_layout={(f32[8,16]{1,0})->f32[4]{0}}

FileNames
1 "a.py"

%region_max (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %m = f32[] maximum(%a, %b), metadata={op_name="calls=%nothing {"}
}

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %zeros = f32[8,4]{1,0} broadcast(%zero), dimensions={}
  ROOT %relu = f32[8,4]{1,0} maximum(%p, %zeros)
}

%condition (s: (s32[], f32[8,4])) -> pred[] {
  %s = (s32[], /*index=1*/f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant(10)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}

%body (t: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %t = (s32[], f32[8,4]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %two = s32[] constant(2)
  %next = s32[] add(%j, %two)
  %y = f32[8,4]{1,0} get-tuple-element(%t), index=1
  %grown = f32[8,4]{1,0} multiply(%y, %y)
  ROOT %state = (s32[], f32[8,4]{1,0}) tuple(%next, %grown)
}

ENTRY %main (x: f32[8,16], w: f32[16,4]) -> f32[4] {
  %x = f32[8,16]{1,0} parameter(0)
  %w = f32[16,4]{1,0} parameter(1)
  %dot = f32[8,4]{1,0} dot(f32[8,16]{1,0} %x, f32[16,4]{1,0} %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %fusion = f32[8,4]{1,0} fusion(%dot), kind=kLoop, calls=%fused
  %start = s32[] constant(0)
  %begin = (s32[], f32[8,4]{1,0}) tuple(%start, %fusion)
  %loop = (s32[], f32[8,4]{1,0}) while(%begin), condition=%condition, body=%body
  %z = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %low = f32[] constant(-inf)
  ROOT %max = f32[4]{0} reduce(%z, %low), dimensions={0}, to_apply=%region_max
}
"""
STABLE_HLO = """#loc = loc(unknown)
module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<8x16xf32> {mhlo.layout = "default"}, %arg1: tensor<16x4xf32>) -> (tensor<4xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32> loc(#loc)
    %c = stablehlo.constant dense<10> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %1 = call @relu(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2:2 = stablehlo.while(%iterArg = %c_0, %iterArg_1 = %1) : tensor<i32>, tensor<8x4xf32>
     cond {
      %4 = stablehlo.compare  LT, %iterArg, %c,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %c_2 = stablehlo.constant dense<2> : tensor<i32>
      %4 = stablehlo.add %iterArg, %c_2 : tensor<i32>
      %5 = stablehlo.multiply %iterArg_1, %iterArg_1 : tensor<8x4xf32>
      stablehlo.return %4, %5 : tensor<i32>, tensor<8x4xf32>
    }
    %3 = stablehlo.reduce(%2#1 init: %cst) applies stablehlo.maximum across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %3 : tensor<4xf32>
  }
  func.func private @relu(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<8x4xf32>
    %0 = stablehlo.maximum %arg0, %cst : tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}
"""  # noqa: E501
GENERIC = """"builtin.module"() <{sym_name = "jit_f"}> ({
  "func.func"() <{function_type = (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<4xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<8x16xf32>, %arg1: tensor<16x4xf32>):
    %0 = "stablehlo.constant"() <{value = dense<0xFF800000> : tensor<f32>}> : () -> tensor<f32>
    %1 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %2 = "stablehlo.dot_general"(%arg0, %arg1) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %3 = "stablehlo.constant"() <{value = dense<0.0> : tensor<8x4xf32>}> : () -> tensor<8x4xf32>
    %4 = "stablehlo.maximum"(%2, %3) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %5:2 = "stablehlo.while"(%1, %4) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<8x4xf32>):
      %7 = "stablehlo.constant"() <{value = dense<10> : tensor<i32>}> : () -> tensor<i32>
      %8 = "stablehlo.compare"(%arg2, %7) <{comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%8) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<8x4xf32>):
      %7 = "stablehlo.constant"() <{value = dense<2> : tensor<i32>}> : () -> tensor<i32>
      %8 = "stablehlo.add"(%arg2, %7) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      %9 = "stablehlo.multiply"(%arg3, %arg3) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      "stablehlo.return"(%8, %9) : (tensor<i32>, tensor<8x4xf32>) -> ()
    }) : (tensor<i32>, tensor<8x4xf32>) -> (tensor<i32>, tensor<8x4xf32>)
    %6 = "stablehlo.reduce"(%5#1, %0) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %7 = "stablehlo.maximum"(%arg2, %arg3) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%7) : (tensor<f32>) -> ()
    }) : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    "func.return"(%6) : (tensor<4xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""  # noqa: E501


def message(*parts: tuple[int, Any]) -> bytes:
    """Protobuf: (number, value) of whole numbers, texts, packed lists of whole numbers and messages."""
    out = b""
    for number, value in parts:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            text = value.encode() if isinstance(value, str) else value
            packed = b"".join(map(_varint, text)) if isinstance(text, list) else text
            out += _varint(number << 3 | 2) + _varint(len(packed)) + packed
    return out


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def shape(kind: int, *dims: int) -> bytes:
    return message((2, kind), (3, list(dims)))


def module() -> bytes:
    """relu of a product, as HloModuleProto."""
    made = [
        message((1, "x"), (2, "parameter"), (3, shape(11, 8, 16)), (35, 1)),
        message((1, "w"), (2, "parameter"), (3, shape(11, 16, 4)), (9, 1), (35, 2)),
        message((1, "dot"), (2, "dot"), (3, shape(11, 8, 4)), (30, message((1, [1]), (2, [0]))), (35, 3), (36, [1, 2])),
        message((1, "neg"), (2, "negate"), (3, shape(11, 8, 4)), (35, 4), (36, [3])),
    ]
    computation = message((1, "main"), *((2, one) for one in made), (5, 7), (6, 4))
    return message((1, "m"), (2, "main"), (3, computation), (6, 7))
