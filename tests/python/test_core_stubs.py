# SPDX-License-Identifier: Apache-2.0
"""The type stubs of tierce._core name what the module has, with the parameters of its docstrings."""

import ast
from pathlib import Path

import pytest
import tierce
from tierce import _core as core

STUBS = ast.parse((Path(tierce.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))


def parameters_of_doc(text):
    """The names of `name(a, b: int = 0) -> …`: brackets inside an annotation are not split."""
    inside, depth, names, word = text[text.index("(") + 1:], 0, [], ""
    for c in inside:
        depth += (c in "([{") - (c in ")]}")
        if depth < 0 or (c == "," and depth == 0):
            names.append(word)
            word = ""
        else:
            word += c
        if depth < 0:
            break
    return [name.partition(":")[0].partition("=")[0].strip() for name in names if name.strip()]


def parameters_of(function):
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] == ["self"] else names


def functions_of(body):
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def compare(body, owner):
    stubs = functions_of(body)
    found = {name for name in vars(owner) if not name.startswith("__") and not isinstance(vars(owner)[name], type)}
    assert set(stubs) == found
    for name, stub in stubs.items():
        if any(isinstance(d, ast.Name) and d.id == "property" for d in stub.decorator_list):
            assert not callable(vars(owner)[name])
            continue
        doc = getattr(owner, name).__doc__
        assert doc.startswith(f"{name}("), doc
        assert parameters_of(stub) == parameters_of_doc(doc), name


def test_functions():
    compare(STUBS.body, core)


def test_functions_without_keywords():
    """If the module rejects a parameter as a keyword, the stub says so with `/`."""
    for name, stub in functions_of(STUBS.body).items():
        if parameters_of(stub):
            with pytest.raises(TypeError, match="takes no keyword arguments"):
                getattr(core, name)(no_such_parameter=1)
            assert not stub.args.args, name


def test_classes():
    classes = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}
    assert set(classes) == {name for name, value in vars(core).items() if isinstance(value, type)}
    for name, node in classes.items():
        if name != "Error":
            compare(node.body, getattr(core, name))
