"""Weights from a Hugging Face repository, `hf:owner/name[@revision]`, through huggingface_hub and its cache.

What that library reads from the environment holds here too: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
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
ANSWER_SECONDS = 10.0  # longer than that without an answer: there is no network
FETCHED = ("config.json", "*.safetensors", "*.safetensors.index.json")


def is_hub_name(weights: str | Path) -> bool:
    """Whether this names a repository instead of a file."""
    return str(weights).startswith(PREFIX)


def official_weights(preset: str) -> str:
    """The repository with OpenAI's weights of a preset, by its canonical name."""
    if preset not in OFFICIAL:
        raise UsageError(f"--pretrained: {preset} has no official weights; {', '.join(OFFICIAL)} have")
    return OFFICIAL[preset]


def fetch(name: str, *, show_progress: bool = False) -> Path:
    """The folder in the cache with a repository's config and safetensors; what is missing is downloaded.

    Raises `UsageError` for a name that can be none, `WeightsError` for a repository that cannot be had.
    """
    repository, at, revision = name.removeprefix(PREFIX).partition("@")
    if repository.count("/") != 1 or (at and not revision):
        raise UsageError(f"{name}: expected hf:owner/name, or hf:owner/name@revision")
    import huggingface_hub
    from huggingface_hub.utils.logging import set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    set_verbosity(logging.ERROR)  # it tells of every try; we tell how it ended
    (enable_progress_bars if show_progress else disable_progress_bars)()
    with _explained(name, repository):
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=list(FETCHED),
            ignore_patterns=["*/*"],  # copies for other programs lie in folders
            library_name="gptcli",
            local_files_only=not _hub_answers(),
        )
    if not any(Path(folder).glob("*.safetensors")):
        raise WeightsError(f"{name}: the repository has no .safetensors file; a pickle is not read")
    return Path(folder)


def _hub_answers() -> bool:
    """Whether the hub says anything in time: huggingface_hub would wait for its list of files forever."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=ANSWER_SECONDS)
    except Exception:  # no network, no such host, HF_HUB_OFFLINE, silence
        return False
    return True


@contextmanager
def _explained(name: str, repository: str) -> Iterator[None]:
    """The library's errors as one line of ours, that says what to do."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.HFValidationError:
        raise UsageError(f"{name}: no name of a repository; expected hf:owner/name") from None
    except errors.GatedRepoError:
        raise WeightsError(
            f"{name}: its owner wants you to accept terms first, at {constants.ENDPOINT}/{repository};"
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
        first = str(error).partition("\n")[0][:200]
        raise WeightsError(
            f"{name}: the download failed ({type(error).__name__}: {first}); run it again to go on"
        ) from None
