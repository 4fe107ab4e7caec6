"""Reads the PTX that our kernels hold as ``asm`` statements, and puts calls of ``ptx_arithmetic.h`` in their place.

One instruction a statement, each with its rounding; what is not understood is refused, never guessed.
"""

from __future__ import annotations

import re

_STATEMENT = re.compile(r"\basm\b(?P<rest>[^;]*;[^;]*;)")
_ASM = re.compile(r'\s*\(\s*"(?P<opcode>[\w.]+)\s+(?P<places>[%\d, ]+);"\s*:(?P<out>[^:]*):(?P<in>[^:]*)\)\s*;')
_OPERAND = re.compile(r'\s*"(=?[a-z])"\s*\((\w+)\)\s*')
_BINARY = re.compile(r"(add|sub|mul|div)\.(rn|rz|rm|rp)(\.ftz)?\.(f32|f64)")
_CONVERT = re.compile(r"cvt(?:\.(rn|rz|rm|rp))?(\.ftz)?\.(f32|f64)\.(f32|f64)")
_MULTIPLY_ADD = re.compile(r"mad\.wide\.([su])32")
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_ROUNDINGS = {"rn": "FE_TONEAREST", "rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
_TYPES = {"f32": ("float", "f"), "f64": ("double", "d")}


class UnknownInstructionError(AssertionError):
    """An ``asm`` statement that has no arithmetic on the host."""


def without_asm(source: str) -> str:
    """Return a kernel's source with what its ``asm`` statements compute."""
    return _STATEMENT.sub(_call, source)


def _call(statement: re.Match[str]) -> str:
    found = _ASM.fullmatch(statement["rest"])
    if found is None:
        raise UnknownInstructionError(f"not one instruction with one result: {statement[0]}")
    operands = [_OPERAND.fullmatch(o) for o in (found["out"], *found["in"].split(","))]
    function, kinds = _function(found["opcode"])
    places = ", ".join(f"%{i}" for i in range(len(kinds)))
    if [o and o[1] for o in operands] != kinds or found["places"] != places:
        raise UnknownInstructionError(f"operands other than {kinds}: {statement[0]}")
    return f"{function}({', '.join(o[2] for o in operands if o)});"


def _function(opcode: str) -> tuple[str, list[str]]:
    """Return the function for an instruction, and the constraints of its operands."""
    if (binary := _BINARY.fullmatch(opcode)) and not (binary[3] and binary[4] == "f64"):
        (name, kind), ftz = _TYPES[binary[4]], "true" if binary[3] else "false"
        operator, rounding = _OPERATORS[binary[1]], _ROUNDINGS[binary[2]]
        return f"ptx_binary<'{operator}', {rounding}, {ftz}, {name}>", [f"={kind}", kind, kind]
    if (convert := _CONVERT.fullmatch(opcode)) and bool(convert[1]) == (convert.group(3, 4) == ("f32", "f64")):
        (to, to_kind), (come, from_kind) = _TYPES[convert[3]], _TYPES[convert[4]]
        ftz = "true" if convert[2] else "false"
        return f"ptx_convert<{_ROUNDINGS[convert[1] or 'rn']}, {ftz}, {to}, {come}>", [f"={to_kind}", from_kind]
    if multiply_add := _MULTIPLY_ADD.fullmatch(opcode):
        return f"ptx_mad_wide<{'int' if multiply_add[1] == 's' else 'unsigned'}>", ["=l", "r", "r", "l"]
    raise UnknownInstructionError(f"no arithmetic for {opcode}")
