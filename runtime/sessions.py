"""ONNX Runtime sessions, one a graph, made when first needed, shared by all conversations and stateless.

The only place that knows a device or a session option.
"""

from __future__ import annotations

import os
import threading

import onnxruntime as ort

from ..errors import ArtifactError, RuntimeSetupError
from ..models.interface import (
    EXPERTS_INPUT,
    HIDDEN,
    HIDDEN_OUT,
    INPUT_IDS,
    SEQLENS_K,
    TOTAL_SEQUENCE_LENGTH,
    kv_names,
    logits_name,
    selected_name,
)
from ..models.manifest import Manifest
from .artifact import Artifact
from .external_data import check_external_data
from .kernels import kernel_library
from .lifetime import go_on
from .route import usual_units
from .threads import use_threads

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


Shapes = dict[str, tuple[int | None, ...]]

_OUT_OF_MEMORY = ("bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
"""How ONNX Runtime's errors say so."""


def expected_interfaces(manifest: Manifest) -> dict[str, tuple[Shapes, Shapes]]:
    """graph → (inputs, outputs) with their shapes, None for what varies, as the manifest implies them."""
    config = manifest.model
    hidden = (1, None, config.hidden_size)
    interfaces: dict[str, tuple[Shapes, Shapes]] = {
        manifest.embed_graph: ({INPUT_IDS: (1, None)}, {HIDDEN_OUT: hidden})
    }
    for unit in manifest.units:
        inputs: Shapes = {HIDDEN: hidden}
        outputs: Shapes = {HIDDEN_OUT: hidden}
        for past, present in (names for layer in unit.attention_layers for names in kv_names(layer)):
            inputs[past] = outputs[present] = (1, config.num_kv_heads, None, config.head_dim)
        if unit.attention_layers:
            inputs |= {SEQLENS_K: (1,), TOTAL_SEQUENCE_LENGTH: (1,)}
        if config.moe is not None:
            sparse = [layer for layer in unit.mlp_layers if layer in config.moe.layers]
            outputs |= {selected_name(layer): (1, None, config.moe.experts_per_token) for layer in sparse}
            inputs |= {EXPERTS_INPUT: (1,)} if sparse else {}
        interfaces[unit.graph] = (inputs, outputs)
    heads = [*manifest.whole_head, *((head.graph, head.ranges) for head in manifest.draft_heads)]
    for graph, ranges in heads:
        logits: Shapes = {logits_name(i): (1, None, b - a) for i, (a, b) in enumerate(ranges)}
        interfaces[graph] = ({HIDDEN: hidden}, logits)
    return interfaces


class Sessions:
    """Sessions of one artifact."""

    def __init__(self, artifact: Artifact, threads: int | None = None, device: str = "cpu") -> None:
        """Args: threads: size of the process's pool; None takes what is set, else as many as are of use here.

        Raises:
            UsageError, RuntimeSetupError: from :func:`use_threads`.
            KernelSetupError: from :func:`kernel_library`.
            ArtifactError: the artifact was exported for another device.
        """
        if device != artifact.manifest.target:
            raise ArtifactError(f"{artifact.path} was exported for {artifact.manifest.target}, not for {device}.")
        self.artifact = artifact
        facts = artifact.manifest.kernels
        self.kernels = None if facts is None else kernel_library(facts)
        """The library beside ONNX Runtime's own kernels, where the artifact needs one."""
        self.threads = use_threads(threads)
        self._interfaces = expected_interfaces(artifact.manifest)
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._lock = threading.Lock()

    def load_all(self) -> None:
        """Make the sessions of the usual passes now, so that no generation pays for them. Those of units beside them,
        and of draft heads, are made when they are first asked for.

        Raises:
            ArtifactError: as :meth:`get`.
        """
        manifest = self.artifact.manifest
        usual = [unit.graph for unit in usual_units(manifest)]
        for graph in (manifest.embed_graph, *usual, *(graph for graph, _ in manifest.whole_head)):
            self.get(graph)

    def get(self, graph: str) -> ort.InferenceSession:
        """The session of a graph file.

        Raises:
            ArtifactError: ONNX Runtime refuses the graph, it takes weights from a file that is not listed as such, or
                it has other inputs and outputs than the manifest implies.
        """
        session = self._sessions.get(graph)
        if session is not None:  # without the lock, which a forked child may have inherited from another thread
            return session
        with self._lock:
            if graph not in self._sessions:
                self._sessions[graph] = self._create(graph)
            return self._sessions[graph]

    @property
    def kernels_name(self) -> str:
        """Whose operators multiply and attend, for people."""
        return "ONNX Runtime's" if self.kernels is None else self.kernels.name

    def options(self) -> ort.SessionOptions:
        """What every session is made with."""
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        options.enable_cpu_mem_arena = True
        options.log_severity_level = 4  # what it would print, it also raises
        options.add_session_config_entry("session.load_model_format", "ONNX")  # what check_external_data has read it as
        options.add_session_config_entry(_WEIGHTS_FOLDER, os.fsencode(self.artifact.path.resolve()))  # no text perhaps
        if self.kernels is not None:
            self.kernels.register(options)
        return options

    def _create(self, graph: str) -> ort.InferenceSession:
        go_on()
        model = self.artifact.read(graph)
        try:
            check_external_data(model, self.artifact.manifest.weight_sizes)
        except ValueError as error:
            raise ArtifactError(
                f"{self.artifact.path / graph} is not loaded: {error}; export the model again."
            ) from error
        options = self.options()
        try:
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            where = self.artifact.path / graph
            if isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY):
                raise RuntimeSetupError(
                    f"memory ran out while {where} was loaded ({error}); free some, or use a smaller model or "
                    "precision."
                ) from error
            raise ArtifactError(
                f"{where} cannot be loaded by ONNX Runtime ({error}); export the model again."
            ) from error
        self._compare(graph, session)
        return session

    def _compare(self, graph: str, session: ort.InferenceSession) -> None:
        inputs, outputs = self._interfaces[graph]
        for found, expected in ((session.get_inputs(), inputs), (session.get_outputs(), outputs)):
            shapes = {node.name: tuple(d if isinstance(d, int) else None for d in node.shape) for node in found}
            if shapes != expected:
                raise ArtifactError(
                    f"{self.artifact.path / graph} is not the graph that the manifest describes; export again."
                )
