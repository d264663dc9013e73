"""Every error of ours, in one tree.

RagloadError                 exit  what happened
├── UsageError                2    the caller asked for something that cannot be
│   ├── CorpusError           2    a corpus, its source or its folder cannot be used
│   ├── IndexMismatchError    2    the index was built from other passages, or by another model
│   ├── ModelMissingError     2    a model or tokenizer is not on this machine
│   ├── SloError              2    the SLO text does not parse
│   ├── BudgetError           2    the token budget cannot hold what must stay in the prompt
│   └── FolderError           2    a folder cannot be read or written, or is of a newer schema
├── InvalidTrialError         3    the trial cannot carry the claim asked of it
└── TargetError               4    the node or the engine did not answer, or answered nonsense

A failed *request* is data (`harness.sample.Sample.failure`), not an exception.
Every message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class RagloadError(Exception):
    """Root of the tree. `exit_code` is what the command line ends with."""

    exit_code = 2


class UsageError(RagloadError):
    """The caller asked for something that cannot be."""


class CorpusError(UsageError):
    """A corpus, its source or its folder cannot be used."""


class IndexMismatchError(UsageError):
    """The index on disk belongs to other passages, another model or other parameters."""


class ModelMissingError(UsageError):
    """A model or tokenizer is not on this machine and cannot be fetched."""


class SloError(UsageError):
    """The SLO text does not parse."""


class BudgetError(UsageError):
    """The token budget cannot hold the parts of the prompt that are never cut."""


class FolderError(UsageError):
    """A folder cannot be read or written, or its files are of a newer schema."""


class InvalidTrialError(RagloadError):
    """The trial cannot carry the claim that was asked of it."""

    exit_code = 3


class TargetError(RagloadError):
    """The node or the engine did not answer, or answered nonsense."""

    exit_code = 4
