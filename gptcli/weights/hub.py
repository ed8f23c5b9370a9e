"""Weights from a Hugging Face repository, which `hub_names` describes, through huggingface_hub and its cache.

The library's environment variables apply: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from gptcli.errors import UsageError, WeightsError
from gptcli.weights.hub_names import PREFIX, HubName, import_library, parse_hub_name

Answer = Literal["answers", "is silent", "refuses the token"]

ANSWER_SECONDS = 10.0  # without an answer in this time, there is no network
UNAUTHORIZED = 401
TOKEN = "HF_TOKEN, or that of hf auth login"
FETCHED = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
PICKLED = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt")


def fetch(
    name: str, *, show_progress: bool = False, notes: list[str] | None = None, pickles: bool = False
) -> Path:
    """Return the folder in the cache with a repository's model and tokenizer, or the file that is named.

    Missing files are downloaded: safetensors, or, with `pickles`, pickles where there are none. A note is
    added to `notes` if the hub refuses the token, so that only the cache is left. Raises `UsageError` for an
    invalid name, `WeightsError` for a repository that cannot be downloaded.
    """
    from gptcli.tokenizer.files import TOKENIZER_FILES

    hub_name = parse_hub_name(name)
    huggingface_hub = import_library()
    hub = _ask_hub(hub_name)
    subfolder, _, file = (hub_name.file or "").rpartition("/")
    fetched = (*FETCHED, *TOKENIZER_FILES)
    wanted = [f for f in fetched if not file or not f.endswith(".safetensors")] + [file] * bool(file)

    def download(patterns: list[str]) -> Path:
        with _library_output(show_progress), _library_errors(name, hub_name.repository, hub):
            folder = huggingface_hub.snapshot_download(
                hub_name.repository,
                revision=hub_name.revision,
                allow_patterns=[f"{subfolder}/{pattern}" if subfolder else pattern for pattern in patterns],
                ignore_patterns=None if subfolder else ["*/*"],  # they hold copies for other programs
                library_name="gptcli",
                local_files_only=hub != "answers",
            )
        return Path(folder)

    folder = download(wanted)
    if notes is not None and hub == "refuses the token":
        notes.append(f"{name}: the hub refuses the token ({TOKEN}), so this is what the cache holds")
    folder /= subfolder
    if file:
        if not (folder / file).is_file():
            raise WeightsError(f"{name}: the repository has no file {hub_name.file}")
        return folder / file
    if any(folder.glob("*.safetensors")):
        return folder
    if pickles:
        return download([*fetched, *PICKLED])
    repository = hub_name.repository
    raise WeightsError(
        f"{name}: the repository has no .safetensors file, and a pickle is not read; the hub often has a"
        f" conversion at {PREFIX}{repository}@refs/pr/1, or use python -m gptcli.convert {name} OUTPUT_DIR"
    )


def _ask_hub(name: HubName) -> Answer:
    """Return whether the hub answers in time: huggingface_hub would wait for its list of files forever.

    With a token that is not valid the hub refuses even what everyone may read.
    """
    from urllib.parse import quote

    from huggingface_hub import constants, get_session, get_token

    url = f"{constants.ENDPOINT}/api/models/{name.repository}/revision/{quote(name.revision or 'main', '')}"
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = get_session().head(url, headers=headers, timeout=ANSWER_SECONDS)
    except Exception:  # no network, no such host, HF_HUB_OFFLINE, silence
        return "is silent"
    return "refuses the token" if token and answer.status_code == UNAUTHORIZED else "answers"


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
def _library_errors(name: str, repository: str, hub: Answer) -> Iterator[None]:
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
        if hub == "refuses the token":
            raise WeightsError(
                f"{name}: the hub refuses the token ({TOKEN}), and the cache {constants.HF_HUB_CACHE} does"
                f" not hold it; take a new token from {constants.ENDPOINT}/settings/tokens, or none"
            ) from None
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
