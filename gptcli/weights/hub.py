"""Weights from a Hugging Face repository, `hf:owner/name[@revision]`, through huggingface_hub and its cache.

The library's environment variables apply: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gptcli.errors import UsageError, WeightsError

PREFIX = "hf:"
OFFICIAL = {
    "gpt2-small": "hf:openai-community/gpt2",
    "gpt2-medium": "hf:openai-community/gpt2-medium",
    "gpt2-large": "hf:openai-community/gpt2-large",
    "gpt2-xl": "hf:openai-community/gpt2-xl",
}
ANSWER_SECONDS = 10.0  # without an answer in this time, there is no network
FETCHED = ("config.json", "*.safetensors", "*.safetensors.index.json")


def is_hub_name(weights: str | Path) -> bool:
    """Return whether this names a repository instead of a file."""
    return str(weights).startswith(PREFIX)


def official_weights(preset: str) -> str:
    """Return the repository with OpenAI's weights of a preset, which is given by its canonical name."""
    if preset not in OFFICIAL:
        raise UsageError(f"--pretrained: {preset} has no official weights; {', '.join(OFFICIAL)} have")
    return OFFICIAL[preset]


def fetch(name: str, *, show_progress: bool = False) -> Path:
    """Return the folder in the cache with a repository's config and safetensors; download missing files.

    Raises `UsageError` for an invalid name, `WeightsError` for a repository that cannot be downloaded.
    """
    repository, at, revision = name.removeprefix(PREFIX).partition("@")
    if repository.count("/") != 1 or (at and not revision):
        raise UsageError(f"{name}: expected hf:owner/name, or hf:owner/name@revision")
    import huggingface_hub

    with _library_output(show_progress), _library_errors(name, repository):
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=list(FETCHED),
            ignore_patterns=["*/*"],  # subfolders hold copies for other programs
            library_name="gptcli",
            local_files_only=not _hub_answers(),
        )
    if not any(Path(folder).glob("*.safetensors")):
        raise WeightsError(f"{name}: the repository has no .safetensors file; a pickle is not read")
    return Path(folder)


def _hub_answers() -> bool:
    """Return whether the hub answers in time: huggingface_hub would wait for its list of files forever."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=ANSWER_SECONDS)
    except Exception:  # no network, no such host, HF_HUB_OFFLINE, silence
        return False
    return True


@contextmanager
def _library_output(show_progress: bool) -> Iterator[None]:
    """Silence huggingface_hub's log but for errors, and set its progress bars; restore both afterwards.

    The library logs every attempt to connect; our message says how the last one ended.
    """
    from huggingface_hub.utils.logging import get_verbosity, set_verbosity
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    def show_bars(wanted: bool) -> None:
        if wanted == are_progress_bars_disabled():
            (enable_progress_bars if wanted else disable_progress_bars)()

    verbosity, had_bars = get_verbosity(), not are_progress_bars_disabled()
    set_verbosity(logging.ERROR)
    try:
        show_bars(show_progress)
        yield
    finally:
        show_bars(had_bars)
        set_verbosity(verbosity)


@contextmanager
def _library_errors(name: str, repository: str) -> Iterator[None]:
    """Turn the library's errors into one line of ours that says what to do."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.HFValidationError:
        raise UsageError(f"{name}: not a repository name; expected hf:owner/name") from None
    except errors.GatedRepoError:
        raise WeightsError(
            f"{name}: its owner asks you to accept terms first, at {constants.ENDPOINT}/{repository};"
            " then set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise WeightsError(f"{name}: the repository has no such revision") from None
    except errors.RepositoryNotFoundError:
        raise WeightsError(
            f"{name}: no such repository at {constants.ENDPOINT}, or a private one (set HF_TOKEN)"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"no answer from {constants.ENDPOINT}"
        status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
        if status is not None:
            why = f"{constants.ENDPOINT} answers {status}"
        raise WeightsError(
            f"{name}: {why}, and the cache {constants.HF_HUB_CACHE} does not hold it; on a machine with"
            f" network, run hf download {repository}, and bring its folder here for --weights"
        ) from None
    except Exception as error:  # of the library, its HTTP client (which has changed), or the disk
        first_line = str(error).partition("\n")[0][:200]
        raise WeightsError(
            f"{name}: the download failed ({type(error).__name__}: {first_line}); run it again to continue"
        ) from None
