"""The independent reference: the model as Hugging Face runs it, in PyTorch and float32. Needs selfspec[reference]."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..export.gguf_parts import part_names
from ..models.config import ModelConfig
from ..models.moe import ROUTER
from ..models.registry import family_of
from ..runtime.arrays import Floats, Ids


class Reference:
    """A Hugging Face causal LM whose hidden states can be looked at between sublayers."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        """Load the model folder or .gguf at ``path``: its weights, and never code that it brings or names."""
        import torch
        from optimum.exporters.tasks import TasksManager

        gguf = path.is_file()
        if gguf and len(part_names(path.name)) > 1:  # it would read the one file, and make up the rest of the weights
            raise ValueError("it does not read GGUF files in several parts")
        source = {"gguf_file": path.name} if gguf else {"use_safetensors": True}
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self._config = config
        self._model: Any = TasksManager.get_model_from_task(
            "text-generation", path.parent if gguf else path, framework="pt", library_name="transformers",
            torch_dtype=torch.float32, trust_remote_code=False, local_files_only=True, attn_implementation="eager",
            **source,
        ).eval()  # fmt: skip

    def replace_linears(self, matrices: Iterable[tuple[str, Floats]]) -> None:
        """Put other weights in; fused matrices are split again, slices of a head written where they belong."""
        import torch

        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        head = self._untied_head()
        with torch.no_grad():
            for name, matrix in matrices:
                base, _, part = name.partition("[")
                if base in ("model.embed_tokens.weight", "lm_head.weight"):
                    start = int(part.split(":")[0]) if part else 0
                    head[start : start + len(matrix)] = torch.from_numpy(matrix)
                    continue
                if base.endswith(ROUTER):  # a router, which no precision rounds
                    continue
                if ".mlp.experts." in base:
                    fused = base if base in parameters else base.replace(".mlp.", ".block_sparse_moe.")
                    parameters[fused].copy_(torch.from_numpy(self._experts(base, matrix)))
                    continue
                for parameter, rows in self._parts(base, matrix):
                    parameters[parameter].copy_(torch.from_numpy(np.ascontiguousarray(rows)))

    def _untied_head(self) -> Any:
        """The head's matrix, apart from the embedding, which keeps what it has."""
        import torch

        head, embedding = self._model.lm_head, self._model.model.embed_tokens
        if head.weight is embedding.weight:
            head.weight = torch.nn.Parameter(embedding.weight.detach().clone())
        return head.weight

    def _experts(self, name: str, matrix: Floats) -> Floats:
        """[E, out, in] of all experts' matrix, without what their width was padded by."""
        moe = self._config.moe
        if moe is None:
            raise ValueError(f"{name}: the configuration has no experts")
        if not name.endswith("gate_up_proj"):
            return np.ascontiguousarray(matrix.reshape(moe.num_experts, -1, matrix.shape[1])[..., : moe.expert_size])
        halves = matrix.reshape(moe.num_experts, 2, -1, matrix.shape[1])[:, :, : moe.expert_size]
        return np.ascontiguousarray(halves.reshape(moe.num_experts, -1, matrix.shape[1]))

    def _parts(self, name: str, matrix: Floats) -> list[tuple[str, Floats]]:
        c = self._config
        q, kv, ff = c.num_attention_heads * c.head_dim, c.num_kv_heads * c.head_dim, len(matrix) // 2
        for fused, parts in (
            ("qkv_proj", (("q_proj", 0, q), ("k_proj", q, q + kv), ("v_proj", q + kv, q + 2 * kv))),
            ("gate_up_proj", (("gate_proj", 0, ff), ("up_proj", ff, 2 * ff))),
        ):
            if fused in name:
                return [(name.replace(fused, part), matrix[start:stop]) for part, start, stop in parts]
        return [(name, matrix)]

    def hidden_states(self, ids: Ids) -> tuple[list[Floats], Floats]:
        """([2 L + 1] hidden states [T, d], logits [T, V]): entry s is the input of sublayer s, the last one the final
        hidden state before the norm. Residual streams, never normed."""
        import torch

        layers, seen = self._model.model.layers, {}
        mlp_input = family_of(self._config.model_type).mlp_input
        hooks = []

        def watch(module: Any, key: int) -> None:
            def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                seen[key] = (args[0] if args else kwargs["hidden_states"]).detach()[0].numpy().copy()

            hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))

        for i, layer in enumerate(layers):
            watch(layer, 2 * i)
            watch(getattr(layer, mlp_input), 2 * i + 1)
        watch(self._model.model.norm, 2 * len(layers))
        with torch.no_grad():
            logits = self._model(torch.from_numpy(ids[None])).logits[0].numpy()
        for hook in hooks:
            hook.remove()
        return [seen[key] for key in range(2 * len(layers) + 1)], logits

    def experts(self, ids: Ids) -> dict[int, list[set[int]]]:
        """Layer → the experts of every row, of layers that have some. Of equal logits the lower index is better."""
        import torch

        moe, chosen, hooks = self._config.moe, dict[int, list[set[int]]](), []
        if moe is None:
            return chosen
        most, modules = moe.experts_per_token, dict(self._model.named_modules())

        def watch(layer: int, router: Any) -> None:
            def hook(_: Any, args: tuple[Any, ...]) -> None:
                logits = args[0].detach().reshape(-1, router.weight.shape[1]) @ router.weight.detach().T
                best = np.argsort(-logits.numpy(), axis=1, kind="stable")[:, :most]
                chosen[layer] = [set(row) for row in best.tolist()]

            hooks.append(router.register_forward_pre_hook(hook))

        for spec in family_of(self._config.model_type).tensor_specs(self._config):
            if spec.name.endswith(ROUTER):
                names = [form.parts[0].removesuffix(".weight") for form in (spec, *spec.alternatives)]
                (router,) = (modules[name] for name in names if hasattr(modules.get(name), "weight"))
                watch(int(spec.name.split(".")[2]), router)
        with torch.no_grad():
            self._model(torch.from_numpy(ids[None]))
        for each in hooks:
            each.remove()
        return chosen
