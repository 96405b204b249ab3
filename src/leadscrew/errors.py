"""Every error that leadscrew raises on purpose, grouped by what the caller will do next.

::

    LeadscrewError
    ├── UsageError                 you change what you wrote, then call again
    │   ├── ConfigError            a key or value in a configuration
    │   ├── ProgramError           a program tree that cannot be taken (paths, sizes, links)
    │   ├── DomainError            a domain that breaks its contract, or whose gold could leak
    │   └── NotFoundError          a run, candidate, instance or plug-in of that name
    ├── RefusedError               the engine declines; the state of the run says why
    │   ├── SealedError            the test split is sealed, or the run is closed
    │   ├── BusyError              another process writes this run
    │   └── SchemaVersionError     the run was written by a newer leadscrew
    ├── PausedError                nothing is lost: mend the cause, then resume
    │   ├── BudgetReached          a cap was reached
    │   └── InfrastructureError    our own parts failed several times in a row
    │       └── ModelOutage        among them: a model that a scorer asks did not answer
    ├── SandboxUnavailable         install or allow a sandbox, or ask for `none` by name
    ├── TamperedError              a stored record no longer matches its digest
    └── MissingExtraError          install the named extra

The failure of a candidate is *not* an error: it is a value (`leadscrew.core.trial.Outcome`).
"""

from __future__ import annotations


class LeadscrewError(Exception):
    """Root of the tree. The text says what was given, why it matters, and what to write instead."""

    exit_code = 1


class UsageError(LeadscrewError):
    """Something the caller wrote cannot be used as it is."""

    exit_code = 2


class ConfigError(UsageError):
    """A key or value in a configuration. `key` is its dotted path, `value` what was given."""

    def __init__(self, message: str, *, key: str = "", value: object = None) -> None:
        super().__init__(message)
        self.key = key
        self.value = value


class ProgramError(UsageError):
    """A tree of files that cannot become a program. `path` is the offending file."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class DomainError(UsageError):
    """A domain that breaks its contract, or whose gold could be reached from inside a box."""


class NotFoundError(UsageError):
    """Nothing of that name. `name` is what was asked for."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class RefusedError(LeadscrewError):
    """The engine declines, for a reason that lies in the state of the run."""

    exit_code = 3


class SealedError(RefusedError):
    """The test split is still sealed, or it was opened and the run is closed."""


class BusyError(RefusedError):
    """Another live process holds the run's writer lock."""


class SchemaVersionError(RefusedError):
    """The run's database was written by a newer version of leadscrew."""


class PausedError(LeadscrewError):
    """The run stopped where it can go on. Everything finished is stored."""

    exit_code = 4


class BudgetReached(PausedError):
    """A cap was reached. `resource` names it."""

    def __init__(self, message: str, *, resource: str = "") -> None:
        super().__init__(message)
        self.resource = resource


class InfrastructureError(PausedError):
    """Our own parts (box, scorer, gateway, disk) failed; no candidate is blamed for it."""

    exit_code = 5


class ModelOutage(InfrastructureError):
    """A model that a scorer asks did not answer. It is never the fault of the answer that was being scored."""


class SandboxUnavailable(LeadscrewError):
    """No sandbox can run here. The text gives the reason and the remedy."""

    exit_code = 6


class TamperedError(LeadscrewError):
    """A stored record does not match its digest or the chain. `record` names the first one."""

    exit_code = 7

    def __init__(self, message: str, *, record: str = "") -> None:
        super().__init__(message)
        self.record = record


class MissingExtraError(LeadscrewError):
    """An optional part was used without its extra. `extra` is the name to install."""

    exit_code = 2

    def __init__(self, message: str, *, extra: str) -> None:
        super().__init__(message)
        self.extra = extra
