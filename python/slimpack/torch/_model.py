# SPDX-License-Identifier: Apache-2.0
"""The parts of a Hugging Face causal language model that a stage holds."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from .. import InvalidInput
from ._attention import attend
from ._linear import hold_products

ATTENTION = "slimpack"  # its name in Hugging Face's registry of attention functions


class Parts(NamedTuple):
    """Modules of a causal language model."""

    embedding: torch.nn.Module
    layers: torch.nn.ModuleList
    rotary: torch.nn.Module
    norm: torch.nn.Module
    head: torch.nn.Module


def parts_of(model: torch.nn.Module) -> Parts:
    """The parts of a model built as Llama is: pre-norm decoder layers with rotary positions.

    Raises InvalidInput where a part is missing or attention is other than causal over the whole sample.
    """
    config: Any = getattr(model, "config", None)
    base = getattr(model, "model", None)
    found = [getattr(base, name, None) for name in ("embed_tokens", "layers", "rotary_emb", "norm")]
    found.append(getattr(model, "lm_head", None))
    for name, part in zip(("model.embed_tokens", "model.layers", "model.rotary_emb", "model.norm", "lm_head"), found):
        if part is None:
            raise InvalidInput(f"model: {type(model).__name__} has no {name}")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise InvalidInput(f"model: layer types {sorted(kinds)} are not all full_attention")
    if getattr(config, "attention_dropout", 0.0):
        raise InvalidInput(f"model: attention_dropout must be 0, got {config.attention_dropout}")
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None):
            raise InvalidInput(f"model: {name} must be unset, got {getattr(config, name)}")
    return Parts(*found)  # type: ignore[arg-type]


def use_slices(model: torch.nn.Module) -> None:
    """Registers attention of slices with Hugging Face and selects it for `model`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    config: Any = model.config
    if config._attn_implementation != ATTENTION:
        model.set_attn_implementation(ATTENTION)  # type: ignore[operator]


class StageModule(torch.nn.Module):
    """Layers [first, end) of a model with what stands before or after them. Names of its parameters are the
    model's own, so that its state dict is a part of the model's."""

    def __init__(self, model: torch.nn.Module, first: int, end: int, embedding: bool, head: bool) -> None:
        super().__init__()
        parts = parts_of(model)
        self.model = torch.nn.Module()
        if embedding:
            self.model.embed_tokens = parts.embedding
        self.model.layers = torch.nn.ModuleDict({str(i): parts.layers[i] for i in range(first, end)})
        if head:
            self.model.norm = parts.norm
            self.lm_head = parts.head
            parts.head._slimpack_head = True  # type: ignore[assignment]
        self.rotary = [parts.rotary]  # in a list: its buffers are not the stage's state
        self.has_head = head
        hold_products(self)

    @property
    def embedding(self) -> Optional[torch.nn.Module]:
        """The embedding, on the first stage."""
        return getattr(self.model, "embed_tokens", None)

    @property
    def layers(self) -> list[torch.nn.Module]:
        """Its layers, in order."""
        return list(self.model.layers.values())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the last stage: hidden states [rows, hidden] to logits [rows, vocabulary]."""
        out: torch.Tensor = self.lm_head(self.model.norm(hidden))
        return out

    def positions(self, hidden: torch.Tensor, positions: torch.Tensor) -> Any:
        """cos and sin of rotary embedding for [1, rows] positions."""
        with torch.no_grad():
            return self.rotary[0].to(hidden.device)(hidden, positions)
