"""The embedded engine: runs a GGUF model on this machine's CPU, in this process.

One thread steps OpenVINO GenAI's continuous batching pipeline (prefix caching on), and futures
return the outputs to the event loop. Every request has a random generator with its own seed, so its
draw does not depend on the rest of its batch, except by rounding (see `PROPERTIES`).
"""

import asyncio
import json
import os
import re
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any, Self

from branchwise.base import ConfigError, EndpointError, Log, replace_surrogates
from branchwise.weights import (
    NFC,
    NORMALIZER_KEY,
    check_embedded,
    ensure_gguf,
    gguf_metadata,
    policy_digest,
    policy_files,
    rendered,
)

from ..reasoning import raw_reply, split_reasoning
from ..sampling import (
    Capabilities,
    Completion,
    FinishReason,
    SampleRequest,
    Structure,
    Usage,
    begun_turn,
    call_key,
    derived_seed,
)
from ..settings import ModelSettings
from .batching import BatchingThread
from .structure import drop_wide_bounds, truncate_to_bounds

BATCHED_TOKENS = 256
"""Limit on tokens (prefill and decode together) per step."""
_FINISH: dict[str, FinishReason] = {"STOP": "stop", "LENGTH": "length"}

PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""Explicit number formats. By default, OpenVINO computes in bfloat16 if the processor has it. That
is faster on an EPYC and slower on a Xeon without AMX, and only 43 of 50 greedy answers equal the
answers of transformers. With float32, all 50 do.

The other requests of a batch decide how a prompt is cut into steps, and so what is read from the
cache. A cache in float16 moved log-probabilities by up to 6e-4, one in float32 by 1e-5. So trees
depend less on the other requests.

With weights in Q8_0, OpenVINO also rounds the activations to 8 bits if the processor has VNNI. On
a Zen 4 this moved log-probabilities by up to 0.11 between a draw alone and in a batch of 8. Without
it (DYNAMIC_QUANTIZATION_GROUP_SIZE 0) they moved by 3e-5, but Q8_0 took 1.9 times as long, longer
than F16. So it stays, and F16 is the precision for trees that repeat.
"""


def embedded_engine(
    settings: ModelSettings, max_batch: int = 32, kv_cache_gib: int = 1, log: Log | None = None
) -> "OpenVINOEngine":
    """Returns the engine for `policy:` or `judge:` settings; converts weights once, into the cache.

    Args:
        settings: Model settings; `model` and `precision` count.
        max_batch: Most generations at once.
        kv_cache_gib: Memory of the key-value cache; 1 GiB holds about 23,000 tokens of the packaged
            model.
        log: Callback for messages about rebuilding damaged weights.

    Raises:
        ConfigError: If the model or a package is missing, or others can write into the cache.
        StorageError: If the cache cannot be written.
    """
    files = policy_files(settings.model)
    check_embedded(files)
    gguf = ensure_gguf(files, settings.precision, log)
    return OpenVINOEngine(
        gguf,
        model=settings.model,
        digest=policy_digest(files, settings.precision + settings.reply_rule),
        thinking=settings.thinking,
        splits_reasoning=settings.reasoning != "keep",
        max_batch=max_batch,
        kv_cache_gib=kv_cache_gib,
    )


class OpenVINOEngine:
    """A GGUF model as an `engines.sampling.Engine`.

    Attributes:
        model: Model name as the user wrote it.
        digest: Hash of weights, adapters, quantisation, tokenizer and chat template.
    """

    capabilities = Capabilities(structured_output=True, json_schema=True, token_ids=True)

    def __init__(
        self,
        gguf: Path,
        *,
        model: str,
        digest: str,
        max_batch: int = 32,
        kv_cache_gib: int = 1,
        thinking: bool = False,
        splits_reasoning: bool = True,
    ) -> None:
        self.model = model
        self.digest = digest
        self._gguf = gguf
        self._max_batch = max_batch
        self._cache_gib = kv_cache_gib
        self._thinking, self._splits_reasoning = thinking, splits_reasoning
        self._batch: BatchingThread | None = None
        self._tokenizer: Any = None
        self._template = ""
        self._context = 0
        self._nfc = False

    @property
    def in_flight(self) -> int:
        """Generations in the batch now, without waiting ones."""
        return 0 if self._batch is None else self._batch.in_flight

    async def __aenter__(self) -> Self:
        pipeline = await asyncio.to_thread(self._load)
        self._batch = BatchingThread(pipeline, self._max_batch, self._decoded)
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._batch is not None:
            await asyncio.to_thread(self._batch.close)
            self._batch = self._tokenizer = None

    async def sample(self, request: SampleRequest) -> Completion:
        """Draws one completion (see `engines.sampling.Engine.sample`).

        Raises:
            EndpointError: If the engine is closed, the prompt is too long, or OpenVINO failed.
        """
        if self._batch is None:
            raise EndpointError("use the embedded engine inside `async with`", fatal=True)
        import numpy as np
        import openvino

        ids = self.prompt_ids(request)
        self._reject_long(len(ids), request)
        _check_readable(request.structure)
        started = time.monotonic()
        seed = derived_seed(call_key(request, self.digest))
        tensor = openvino.Tensor(np.array([ids], dtype=np.int64))
        future = self._batch.submit(tensor, _config(request, seed))
        output, text = await asyncio.wrap_future(future)
        return self._completion(request, ids, output, text, time.monotonic() - started)

    def prompt_ids(self, request: SampleRequest) -> list[int]:
        """Returns the prompt as the model sees it: the chat template and `SampleRequest.prefix`."""
        first, parts = begun_turn(request)
        special_tokens = {
            "bos_token": self._tokenizer.get_bos_token(),
            "eos_token": self._tokenizer.get_eos_token(),
        }
        ids = self._encoded(
            rendered(
                self._template,
                request.messages,
                first,
                special_tokens=special_tokens,
                thinking=self._thinking,
            )
        )
        for part in parts:
            ids += self._encoded(part) if isinstance(part, str) else part
        return ids

    def _encoded(self, text: str) -> list[int]:
        text = replace_surrogates(text)
        if self._nfc:  # OpenVINO's tokenizer does not normalize
            text = unicodedata.normalize(NFC, text)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return list(encoded.input_ids.data[0].tolist())

    def _decoded(self, output: Any) -> tuple[Any, str]:
        """Returns an output with its text.

        Runs on the batching thread between two steps, because the pipeline decodes during a step
        and concurrent use of its decoder can end in a deadlock; see `_parallel_decoders`.
        """
        return output, str(self._tokenizer.decode(output.generated_ids, skip_special_tokens=True))

    def _completion(
        self, request: SampleRequest, prompt: list[int], output: Any, written: str, latency_s: float
    ) -> Completion:
        ids = [int(i) for i in output.generated_ids]
        logprobs: tuple[float, ...] | None = tuple(output.generated_log_probs)
        text, finish = written, _FINISH.get(output.finish_reason.name, "unknown")
        stop = next((s for s in request.sampling.stop if s in text), None)
        if stop is not None:  # at the last token, OpenVINO says "length"
            text, finish = text.partition(stop)[0], "stop"
        if request.structure is not None and request.structure.kind == "regex":
            text = truncate_to_bounds(request.structure.value, text)
            if text != written:  # cut at the bound, so the model's tokens no longer match
                ids = [*self._encoded(text), int(self._tokenizer.get_eos_token_id())]
                logprobs, finish = None, "stop"
        reasoning, full_text = "", text
        # A protocol that continues its turn, or trains on all tokens, reads its own `<think>`.
        if self._splits_reasoning and not (request.tokens or request.prefix):
            text, reasoning = split_reasoning(text)
        return Completion(
            text=text,
            finish_reason=finish,
            # OpenVINO does not report cache hits.
            usage=Usage(len(prompt), 0, len(output.generated_ids)),
            reasoning=reasoning,
            raw=raw_reply(full_text, finish) if reasoning else None,
            model=self.model,
            stop_reason=stop,
            prompt_ids=tuple(prompt),
            token_ids=tuple(ids),
            logprobs=logprobs,
            latency_s=latency_s,
        )

    def _reject_long(self, prompt_tokens: int, request: SampleRequest) -> None:
        new_tokens = request.sampling.max_new_tokens
        if self._context and prompt_tokens + new_tokens > self._context:
            raise EndpointError(
                f"a prompt of {prompt_tokens} tokens and {new_tokens} new ones exceed the "
                f"context of {self.model} ({self._context} tokens). Show fewer or shorter passages"
            )

    def _load(self) -> Any:
        """Returns the pipeline; sets tokenizer, chat template and context length."""
        genai = _openvino_genai()
        template, context, form = gguf_metadata(
            self._gguf, "tokenizer.chat_template", "{arch}.context_length", NORMALIZER_KEY
        )
        if not template:
            raise ConfigError(
                f"{self._gguf}: the chat template is missing. Export the file with one"
            )
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = self._max_batch
        scheduler.max_num_batched_tokens = BATCHED_TOKENS
        scheduler.cache_size = self._cache_gib
        decoders = _parallel_decoders()
        properties = {**PROPERTIES, "sampler_num_threads": decoders}
        try:
            pipeline = genai.ContinuousBatchingPipeline(
                str(self._gguf), scheduler, "CPU", properties, {"NUM_STREAMS": decoders}
            )
        except RuntimeError as error:
            raise ConfigError(f"OpenVINO cannot load {self._gguf}: {error}") from error
        self._tokenizer = pipeline.get_tokenizer()
        self._template, self._context, self._nfc = str(template), int(context or 0), form == NFC
        return pipeline


def _parallel_decoders() -> int:
    """Returns how many decoders OpenVINO can run at once on this machine.

    By default, a thread per core samples, and all of them share one decoder when they look for stop
    strings. A thread that finds it taken can miss its return and then waits forever, which stops
    the whole pipeline (openvino.genai 2026.4, `CircularBufferQueue::get_idle`). With as many
    decoders as threads, none has to wait.
    """
    import numpy as np
    import openvino
    from openvino import opset13

    inputs = opset13.parameter([1], np.float32)
    smallest = openvino.Model([opset13.relu(inputs)], [inputs])
    most = {"NUM_STREAMS": os.cpu_count() or 1}  # OpenVINO lowers it to what it can use
    compiled = openvino.Core().compile_model(smallest, "CPU", most)
    return int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))


def _openvino_genai() -> Any:
    # `import openvino` sends telemetry unless this package cannot be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino_genai
    except ImportError as error:
        raise ConfigError(
            "the embedded engine needs openvino-genai: pip install 'branchwise[cpu]'"
        ) from error
    return openvino_genai


def _config(request: SampleRequest, seed: int) -> Any:
    genai = _openvino_genai()
    sampling = request.sampling
    config = genai.GenerationConfig()
    config.apply_chat_template = False  # the prompt already contains it
    config.max_new_tokens = sampling.max_new_tokens
    config.logprobs = 1
    config.rng_seed = seed
    config.do_sample = sampling.temperature > 0
    if config.do_sample:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
    if sampling.stop:
        config.stop_strings = set(sampling.stop)
        config.include_stop_str_in_output = True  # `_completion` searches for it
    if request.structure is not None:
        form, value = request.structure.kind, request.structure.value
        value = drop_wide_bounds(value) if form == "regex" else value
        config.structured_output_config = genai.StructuredOutputConfig(**{form: value})
    return config


def _check_readable(structure: Structure | None) -> None:
    """Rejects a constraint that cannot be parsed; in the pipeline it would end the whole batch."""
    try:
        if structure is not None and structure.kind == "regex":
            re.compile(structure.value)
        elif structure is not None:
            json.loads(structure.value)
    except (re.error, ValueError) as error:
        raise EndpointError(f"unreadable constraint {structure}: {error}") from error
