"""ONNX Runtime sessions, one a graph, made when first needed, shared by all conversations and stateless.

The only place that knows a device or a session option.
"""

from __future__ import annotations

import threading

import onnxruntime as ort

from ..errors import ArtifactError
from .artifact import Artifact
from .threads import use_threads

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class Sessions:
    """Sessions of one artifact."""

    def __init__(self, artifact: Artifact, threads: int | None = None, device: str = "cpu") -> None:
        """Args: threads: size of the process's pool; None takes what is set, else the physical cores.

        Raises:
            UsageError, RuntimeSetupError: from :func:`use_threads`.
            ArtifactError: the artifact was exported for another device.
        """
        if device != artifact.manifest.target:
            raise ArtifactError(f"{artifact.path} was exported for {artifact.manifest.target}, not for {device}.")
        self.artifact = artifact
        self.threads = use_threads(threads)
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._lock = threading.Lock()

    def load_all(self) -> None:
        """Make every session now, so that no generation pays for it."""
        manifest = self.artifact.manifest
        for graph in (manifest.embed_graph, *(u.graph for u in manifest.units), manifest.head.hot_graph):
            self.get(graph)
        if manifest.head.rest_graph is not None:
            self.get(manifest.head.rest_graph)

    def get(self, graph: str) -> ort.InferenceSession:
        """The session of a graph file.

        Raises:
            ArtifactError: ONNX Runtime refuses the graph.
        """
        with self._lock:
            if graph not in self._sessions:
                self._sessions[graph] = self._create(graph)
            return self._sessions[graph]

    def _create(self, graph: str) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        options.enable_cpu_mem_arena = True
        options.log_severity_level = 3
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(self.artifact.path.resolve()))
        try:
            return ort.InferenceSession(self.artifact.read(graph), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise ArtifactError(
                f"{self.artifact.path / graph} cannot be loaded by ONNX Runtime ({error}); export the model again."
            ) from error
