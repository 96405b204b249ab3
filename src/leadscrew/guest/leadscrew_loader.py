"""Loads a Python program and finds in it what its interface asks for."""

from __future__ import annotations

import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from leadscrew.guest import leadscrew_guest
    from leadscrew.guest import leadscrew_wire as wire
else:
    import leadscrew_guest
    import leadscrew_wire as wire

_LEARN = ("learn_from_batch", "learn")


class PythonProgram:
    """The entry module of a program, and the functions or the class in it that do the work."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder, self.entry, self.operation = spec["program"], spec["entry"], spec["operation"]
        self.learner: Any = None
        self.solve: Callable[[Any, int], Any]
        self.work: Callable[[Any, str], Any]
        self.agent: Callable[[], Callable[[Any], Any]]

    def load(self) -> None:
        """Import the entry file and bind the operation; raises `Invalid` with the reason if it cannot be done."""
        module = self.run_entry()
        getattr(self, f"_bind_{self.operation}")(module)

    def run_entry(self) -> types.ModuleType:
        path = os.path.join(self.folder, self.entry)
        name = os.path.basename(self.entry).rpartition(".")[0] or self.entry
        module = types.ModuleType(name)
        module.__file__ = path
        sys.path.insert(0, self.folder)
        beside = os.path.dirname(path)
        if beside != self.folder.rstrip("/"):
            sys.path.insert(0, beside)
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError as error:
            raise wire.Invalid(f"the program has no readable file {self.entry!r} ({error.strerror})") from None
        sys.modules[name] = module
        sys.argv = [path]
        try:
            exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        except MemoryError:
            raise
        except BaseException as error:  # whatever stops the import makes the program invalid
            raise wire.Invalid(f"{self.entry} cannot be loaded:\n{wire.describe(error)}") from None
        return module

    # -- one binding per operation -------------------------------------------------------------

    def _bind_solve(self, module: types.ModuleType) -> None:
        function = self._function(module, "solve", "def solve(input): ...")
        self.solve = (
            (lambda value, seed: function(value, seed))
            if _takes(function, 2)
            else (lambda value, seed: function(value))
        )
        if not _takes(function, 2) and not _takes(function, 1):
            raise wire.Invalid(f"solve{_shape(function)} cannot be called as solve(input) or solve(input, seed)")

    def _bind_workspace(self, module: types.ModuleType) -> None:
        function = self._function(module, "work", "def work(input, folder): ...")
        if not _takes(function, 2):
            raise wire.Invalid(f"work{_shape(function)} cannot be called as work(input, folder)")
        self.work = function

    def _bind_act(self, module: types.ModuleType) -> None:
        kind = _class_in(module, ("act",))
        if kind is not None:
            if not _takes(kind.act, 2):
                raise wire.Invalid(f"{kind.__name__}.act{_shape(kind.act)} cannot be called as act(observation)")
            self.agent = lambda: _instance(kind).act
            return
        function = self._function(module, "act", "class Agent:\n    def act(self, observation): ...")
        if not _takes(function, 1):
            raise wire.Invalid(f"act{_shape(function)} cannot be called as act(observation)")
        self.agent = lambda: function

    def _bind_predict(self, module: types.ModuleType) -> None:
        kind = _class_in(module, ("predict", _LEARN))
        if kind is not None:
            for name in ("predict", next(n for n in _LEARN if hasattr(kind, n))):
                method = getattr(kind, name)
                if not _takes(method, 2):
                    raise wire.Invalid(f"{kind.__name__}.{name}{_shape(method)} must take one argument besides self")
            self.kind: Any = kind
            self.learner = _instance(kind)
            return
        predict = self._function(module, "predict", "def predict(input): ... and def learn(batch): ...")
        learn = next((f for n in _LEARN if callable(f := getattr(module, n, None))), None)
        if learn is None:
            raise wire.Invalid("there is predict() but no learn(batch); write one, even if it does nothing")
        for function, shown in ((predict, "predict(input)"), (learn, "learn(batch)")):
            if not _takes(function, 1):
                raise wire.Invalid(f"{shown} has the parameters {_shape(function)} instead")
        self.kind = None
        self.learner = module

    def _function(self, module: types.ModuleType, name: str, wanted: str) -> Any:
        function = getattr(module, name, None)
        if not callable(function):
            raise wire.Invalid(f"{self.entry} does not define {name!r}; write\n{wanted}")
        return function

    # -- learners ------------------------------------------------------------------------------

    def predict(self, value: Any) -> tuple[Any, dict[str, Any]]:
        """Predict one input; returns the answer and metadata."""
        return _with_metadata(self.learner.predict(value))

    def learn(self, batch: list[dict[str, Any]]) -> None:
        """Hand a batch of labelled items to the learner."""
        learner = self.learner
        (getattr(learner, "learn_from_batch", None) or learner.learn)(batch)

    def smoke(self, probe: Any) -> None:
        """Check a learner's manners: a prediction before any learning, and the round trip of its state."""
        if self.operation != "predict":
            return
        self._expect("predict() before anything was learned", lambda: self.predict(probe))
        learner = self.learner
        if hasattr(learner, "get_state") and hasattr(learner, "set_state"):
            state = self._expect("get_state()", learner.get_state)
            if not isinstance(state, str):
                raise wire.Invalid(f"get_state() must return text, not {type(state).__name__}")
            other = _instance(self.kind) if self.kind is not None else learner
            self._expect("set_state() with what get_state() returned", lambda: other.set_state(state))
            self._expect("predict() after set_state()", lambda: _with_metadata(other.predict(probe)))

    def _expect(self, what: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except MemoryError:
            raise
        except BaseException as error:  # any failure of the smoke test is the answer to it
            raise wire.Invalid(f"{what} failed:\n{wire.describe(error)}") from None

    def ready(self) -> None:
        """Nothing to do before trials."""


def _with_metadata(result: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result[0], result[1]
    return result, {}


def _class_in(module: types.ModuleType, wanted: tuple[Any, ...]) -> Any:
    """The class defined in the module that has the wanted methods: the one PROGRAM names, else the last one."""
    found = []
    for thing in list(vars(module).values()):
        if not isinstance(thing, type) or thing.__module__ != module.__name__:
            continue
        if all(_has(thing, name) for name in wanted) and not getattr(thing, "__abstractmethods__", None):
            found.append(thing)
    named = getattr(module, "PROGRAM", None)
    if named is not None:
        for thing in found:
            if thing is named or thing.__name__ == named:
                return thing
        raise wire.Invalid(f"PROGRAM names {named!r}, but no class of that name with the right methods is defined here")
    return found[-1] if found else None


def _has(thing: type, name: Any) -> bool:
    return any(callable(getattr(thing, n, None)) for n in (name if isinstance(name, tuple) else (name,)))


def _instance(kind: Any) -> Any:
    constructor = kind.__init__
    if constructor is object.__init__ or _takes(constructor, 1):
        return kind()
    if _takes(constructor, 2):
        return kind(leadscrew_guest.llm)
    raise wire.Invalid(f"{kind.__name__}() must take no argument, or one (the model), not {_shape(constructor)}")


def _arity(function: Any) -> tuple[int, int] | None:
    """Fewest and most positional arguments, self included; None if it cannot be told."""
    code = getattr(function, "__code__", None)
    if code is None:
        function, bound = vars(type(function)).get("__call__"), 1
        code = getattr(function, "__code__", None)
        if code is None or isinstance(function, type):
            return None
    else:
        bound = 1 if isinstance(function, types.MethodType) else 0
    defaults = len(function.__defaults__ or ())
    needed = code.co_argcount - defaults - bound
    if code.co_kwonlyargcount and len(function.__kwdefaults__ or {}) < code.co_kwonlyargcount:
        needed = 1_000
    return needed, 1_000 if code.co_flags & 0x04 else code.co_argcount - bound


def _takes(function: Any, count: int) -> bool:
    arity = _arity(function)
    return arity is None or arity[0] <= count <= arity[1]


def _shape(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return "(...)"
    return "(" + ", ".join(code.co_varnames[: code.co_argcount]) + ")"
