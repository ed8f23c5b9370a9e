"""The names of weights on the Hugging Face hub, as people type them: `hf:owner/name`, a URL, `hf:gpt2`."""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptcli.errors import UsageError

PREFIX = "hf:"
OFFICIAL = {
    "gpt2-small": "hf:openai-community/gpt2",
    "gpt2-medium": "hf:openai-community/gpt2-medium",
    "gpt2-large": "hf:openai-community/gpt2-large",
    "gpt2-xl": "hf:openai-community/gpt2-xl",
}
# The hub's first repositories had no owner, and their old names are still typed.
OWNERS = {"gpt2": "openai-community", "gpt2-medium": "openai-community", "gpt2-large": "openai-community"}
OWNERS |= {"gpt2-xl": "openai-community", "distilgpt2": "distilbert"}
EXPECTED = "expected hf:owner/name, or hf:owner/name@revision, or hf:owner/name/file.safetensors"

# A path has lost one of a URL's slashes.
_URL = re.compile(r"(?:hf:)?(?:https?:/{1,2}(?P<host>[^/]+)|(?:huggingface\.co|hf\.co))/(?P<path>[^?#]*)")
_WEB_PAGE = re.compile(
    r"(?P<repository>[^/]+(?:/[^/]+)?)(?:/(?:tree|blob|resolve)/(?P<revision>[^/]+)(?P<file>/.*)?)?/?"
)
_NAME = re.compile(r"(?P<repository>[^/@]+(?:/[^/@]+)?)(?P<file>/[^@]+\.safetensors)?(?:@(?P<revision>.+))?")
_FILE_OF_REVISION = re.compile(r"(?P<revision>(?:refs/\w+/)?[^/]+)(?P<file>/.+\.safetensors)")


@dataclass(frozen=True)
class HubName:
    """A repository of the hub, and in it a revision and a file, if they are named."""

    repository: str
    revision: str | None = None
    file: str | None = None


def is_hub_name(weights: str | Path) -> bool:
    """Return whether this names a repository instead of a file."""
    return str(weights).startswith(PREFIX) or _URL.match(str(weights)) is not None


def official_weights(preset: str) -> str:
    """Return the repository with OpenAI's weights of a preset, which is given by its canonical name."""
    if preset not in OFFICIAL:
        raise UsageError(f"--pretrained: {preset} has no official weights; {', '.join(OFFICIAL)} have")
    return OFFICIAL[preset]


def parse_hub_name(name: str) -> HubName:
    """Return what a name or a URL means; raise `UsageError` for one that names no repository."""
    if (url := _URL.match(name)) is not None:
        return _parse_url(name, url)
    found = _NAME.fullmatch(name.removeprefix(PREFIX).lstrip("/"))  # hf://owner/name is written, too
    if found is None:
        raise UsageError(f"{name}: {EXPECTED}")
    repository, file, revision = found["repository"], found["file"], found["revision"]
    if revision and (inner := _FILE_OF_REVISION.fullmatch(revision)) is not None:
        revision, file = inner["revision"], inner["file"]
    return HubName(_with_owner(name, repository), revision, file and file.removeprefix("/"))


def _with_owner(name: str, repository: str) -> str:
    if "/" in repository:
        return repository
    if repository not in OWNERS:
        raise UsageError(f"{name}: {EXPECTED}")
    return f"{OWNERS[repository]}/{repository}"


def _parse_url(name: str, url: re.Match[str]) -> HubName:
    from urllib.parse import unquote

    endpoint: str = import_library().constants.ENDPOINT
    hosts = ("huggingface.co", "www.huggingface.co", "hf.co", endpoint.partition("://")[2])
    found = _WEB_PAGE.fullmatch(url["path"])
    if url["host"] not in (None, *hosts) or found is None:
        raise UsageError(f"{name}: not a model's page on the Hugging Face hub; {EXPECTED}")
    revision, file = found["revision"], (found["file"] or "").strip("/")
    return HubName(
        _with_owner(name, found["repository"]),
        None if revision in (None, "main") else unquote(revision),
        unquote(file) if file.endswith(".safetensors") else None,
    )


def import_library() -> Any:
    """Import huggingface_hub without its warnings about the environment, as for HF_HUB_ENABLE_HF_TRANSFER."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import huggingface_hub
        import huggingface_hub.constants  # which is what warns
    return huggingface_hub


def hint_for(path: Path) -> str:
    """Return a hint for a path that does not exist and looks like a repository of the hub; else nothing."""
    name = str(path)
    if name in OWNERS:
        name = f"{OWNERS[name]}/{name}"
    elif not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) or path.parent.is_dir():
        return ""
    return f"; if it is a repository on the Hugging Face hub, give {PREFIX}{name}"
