# SPDX-License-Identifier: Apache-2.0
"""generate.py INCLUDE OUT - writes covey/_abi.py from the headers in INCLUDE: constants, enums, structs, functions.

They are the one source, and keep to a plain form: one declaration ends with each semicolon outside of braces,
constants are #define NAME NUMBER, and codes of errors stand in COVEY_ERROR_LIST.
"""

import os
import re
import sys
from pathlib import Path

HEADERS = ("covey.h", "covey_ep.h", "covey_admin.h", "covey_device.h")
TYPES = {
    "char": "c_char", "int": "c_int", "float": "c_float", "size_t": "c_size_t", "int32_t": "c_int32",
    "int64_t": "c_int64", "uint8_t": "c_uint8", "uint32_t": "c_uint32", "uint64_t": "c_uint64",
}
HEAD = '''# SPDX-License-Identifier: Apache-2.0
# Made from the headers of the C interface by python/generate.py.
"""The C interface, for ctypes: constants, enums, structs, and the types of each function."""

from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t,
                    c_uint8, c_uint32, c_uint64, c_void_p)
from enum import IntEnum

'''


def declarations(text):
    """The declarations of the header, each on one line, without comments and what is for the preprocessor."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^#if defined\(__CUDACC__\).*", "", text, flags=re.S | re.M)  # kernels, at the end of the last
    text = re.sub(r"^#ifdef __cplusplus$.*?^#(?:else|endif)$", "", text, flags=re.S | re.M)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    text = re.sub(r"static inline.*?\n}\n", "", text, flags=re.S)
    depth, line = 0, ""
    for c in text:
        line += c
        depth += (c == "{") - (c == "}")
        if c == ";" and depth == 0:
            yield " ".join(line.split()).removesuffix(";").strip()
            line = ""


def ctype(type_, structs):
    """The ctypes type of a C type, which has its stars at the end."""
    stars = type_.count("*")
    name = type_.replace("*", " ").replace("const", " ").strip()
    if not stars:
        return f"{name.removeprefix('struct ')}" if name.startswith("struct ") else TYPES[name]
    if name == "char" and stars == 1:
        return "c_char_p"
    if name == "char" and stars == 2:
        return "POINTER(c_char_p)"
    if name == "size_t" and stars == 1:
        return "POINTER(c_size_t)"
    if name == "int" and stars == 1:
        return "POINTER(c_int)"
    if name.startswith("struct ") and stars == 1 and name.removeprefix("struct ") in structs:
        return f"POINTER({name.removeprefix('struct ')})"
    if stars == 2:
        return "POINTER(c_void_p)"
    return "c_void_p"  # handles, buffers, streams


def split(declarator):
    """Type, name and bound (None or text) of one declarator."""
    m = re.fullmatch(r"(.*?)(\w+)(?:\[(.*)\])?", declarator.strip())
    return m[1].strip(), m[2], m[3]


def fields(body, structs):
    for member in filter(None, (part.strip() for part in body.split(";"))):
        first, *others = member.split(",")
        type_, name, bound = split(first)
        for text in [None, *others]:
            if text is not None:
                stars, name, bound = split(text)
                type_ = type_.rstrip("* ") + " " + stars
            kind = ctype(type_, structs)
            yield name, f"{kind} * ({bound.replace('/', '//')})" if bound else kind


def enums(text):
    for declaration in declarations(text):
        m = re.fullmatch(r"enum (\w+) \{(.*)\}", declaration)
        if m and m[1] != "covey_error":
            value, rows = -1, []
            for item in filter(None, (part.strip() for part in m[2].split(","))):
                name, _, number = item.partition("=")
                value = int(number) if number else value + 1
                rows.append((name.strip(), value))
            yield m[1], rows


def camel(name):
    return "".join(part.capitalize() for part in name.split("_"))


def main(include, out):
    text = "".join(Path(include, name).read_text(encoding="utf-8") for name in HEADERS)
    lines = [HEAD]
    for name, value in re.findall(r"^#define (COVEY_(?:VERSION|MAX|DEVICE_MAX|RANK|TAG)_\w+) \(?(-?\d+)\)?", text, re.M):
        lines.append(f"{name} = {value}")
    for name, value in re.findall(r"^#define (COVEY_\w+) (0x[0-9a-f]+)u\b", text, re.M):
        lines.append(f"{name} = {value}")
    for name, value in re.findall(r"^#define (COVEY_STREAM_\w+) \(\(struct CUstream_st \*\)(\d+)\)", text, re.M):
        lines.append(f"{name} = {value}")
    lines.append("\nERRORS = {  # code: (name, text)")
    for name, code, what in re.findall(r'X\((\w+), (-\d+), "(.*?)"\)', text):
        lines.append(f'    {code}: ("{name}", "{what}"),')
    lines.append("}\n")
    for name, rows in enums(text):
        prefix = os.path.commonprefix([n for n, _ in rows])
        prefix = prefix[: prefix.rfind("_") + 1]
        lines.append(f"\nclass {camel(name.removeprefix('covey_'))}(IntEnum):")
        lines += [f"    {n.removeprefix(prefix)} = {v}" for n, v in rows] + [""]
    structs = {}
    for declaration in declarations(text):
        m = re.fullmatch(r"struct (covey_\w+) \{(.*)\}", declaration)
        if m:
            structs[m[1]] = list(fields(m[2], structs))
    for name, rows in structs.items():
        lines.append(f"\nclass {name}(Structure):\n    _fields_ = [")
        lines += [f'        ("{n}", {kind}),' for n, kind in rows] + ["    ]\n"]
    lines.append("\nLOG_FN = CFUNCTYPE(None, c_void_p, c_int, c_char_p)")
    lines.append("PAIR_FN = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)\n")
    lines.append("FUNCTIONS = {  # name: (returns, arguments)")
    for declaration in declarations(text):
        m = re.fullmatch(r"COVEY_API (.*?[ *])(covey_\w+)\((.*)\)", declaration)
        if not m:
            continue
        returns, name, rest = m[1].strip(), m[2], m[3]
        rest = re.sub(r"void \(\*(\w+)\)\(.*?\)", r"PAIR_FN \1", rest).replace("covey_log_fn fn", "LOG_FN fn")
        kinds = []
        for argument in ([] if rest == "void" else rest.split(",")):
            type_, _, _ = split(argument)
            kinds.append(type_ if type_ in ("PAIR_FN", "LOG_FN") else ctype(type_, structs))
        result = "None" if returns == "void" else ctype(returns, structs)
        lines.append(f'    "{name}": ({result}, [{", ".join(kinds)}]),')
    lines.append("}\n")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
