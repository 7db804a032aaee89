# SPDX-License-Identifier: Apache-2.0
"""Tensors of MicroPacks."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import torch

from .. import InvalidInput, Plan
from ._rows import check_dp_rank, rows

if TYPE_CHECKING:
    IntArray = np.ndarray[Any, np.dtype[np.int64]]

Documents = Union[Sequence[Any], Mapping[int, Any], Callable[[int], Any]]

NO_TARGET = -100  # what torch's cross-entropy ignores


class Pack(NamedTuple):
    """What a model reads of a forward MicroPack of T tokens: the names and shapes of Hugging Face's
    `DataCollatorWithFlattening(return_flash_attn_kwargs=True)`.

    Attributes:
        input_ids: int64 [1, T].
        labels: int64 [1, T], ALREADY SHIFTED: the label of a token is the token after it, -100 where there is none.
            Hugging Face's own losses shift labels that are not, so give these to a loss that does not shift.
        position_ids: int64 [1, T]: positions in the sample. A slice begins at its prefix, not at 0.
        cu_seq_lens_q, cu_seq_lens_k: int32 [segments + 1], from 0: `Plan.cu_seqlens`. Keys of a segment are its
            sample's from position 0 on, earlier slices' too, so there may be more of them than queries.
        max_length_q, max_length_k: the most queries and keys of a segment.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    cu_seq_lens_q: torch.Tensor
    cu_seq_lens_k: torch.Tensor
    max_length_q: int
    max_length_k: int


def documents_of(plan: Plan, dp_rank: int) -> list[int]:
    """The documents that data-parallel rank `dp_rank` needs for a step: their numbers, ascending, each once.

    Raises InvalidInput where there is no such rank.
    """
    check_dp_rank(dp_rank, plan.dp)
    numbers: list[int] = np.unique(plan.origin[_samples_of(plan, dp_rank), 1]).tolist()
    return numbers


def collate(plan: Plan, documents: Documents, dp_rank: int, *, eod: Optional[int] = None,
            device: Union[str, torch.device] = "cpu") -> dict[int, Pack]:
    """The tensors of a data-parallel rank's forward MicroPacks.

    Args:
        documents: token ids of each document, by its number in the lengths that were planned: a sequence, a mapping
            or a function of the number. Each is a sequence of integers with one axis. Those of `documents_of` are
            asked for, once each.
        eod: the end-of-document id. It is the label of a document's last token unless the document ends in it; None:
            a last token has no label.
        device: where the tensors are.

    Returns:
        Packs by the number of their MicroPack, in the plan's order. In a group of several ranks a pack has the tokens
        that this rank computes, as `rows` gives them; it may have none.

    Labels are shifted here (`Pack`), so that a sample that goes on in the next piece of its document has a label for
    its last token too. Without `eod` all ranks together have `plan.target_tokens` labels, what the plan's loss is a
    mean over. With it there is one more for each document that ends in the step and not in `eod`: divide by their
    sum over all ranks.

    Raises InvalidInput, naming sample and document, where a document is not there, has another length than was
    planned, or holds an id outside of the plan's vocabulary. A plan does not say where a document ends whose sample
    is as long as the longest one of the step: that may be a piece, and more tokens may follow.
    """
    check_dp_rank(dp_rank, plan.dp)
    vocab = plan.model["vocab"]
    if eod is not None and not 0 <= eod < vocab:
        raise InvalidInput(f"eod: must be from 0 to {vocab - 1}, a token of the plan's vocabulary, got {eod}")
    tokens, targets, begins = _flattened(plan, _samples_of(plan, dp_rank), _get(documents), eod, vocab)
    packs = {}
    for pack in plan.micropacks:
        group = plan.groups[pack.group]
        if pack.pass_ != "forward" or dp_rank not in group:
            continue
        rank = group.index(dp_rank)
        samples, positions = rows(plan, pack, rank).T
        at = begins[samples] + positions
        cu_q, cu_k, most_q, most_k = plan.cu_seqlens(pack, rank)
        ids, labels, places, queries, keys = (
            torch.from_numpy(array).to(device) for array in (tokens[at], targets[at], positions.copy(), cu_q, cu_k))
        packs[pack.id] = Pack(ids[None], labels[None], places[None], queries, keys, most_q, most_k)
    return packs


def _samples_of(plan: Plan, dp_rank: int) -> IntArray:
    """The samples of the rank's groups, ascending."""
    if plan.origin[:, 0].any():
        raise InvalidInput(f"plan: documents have numbers of one source, the plan has {plan.origin[:, 0].max() + 1}")
    own = [pack.slices[:, 0] for pack in plan.micropacks
           if pack.pass_ == "forward" and dp_rank in plan.groups[pack.group]]
    return np.unique(np.concatenate([np.empty(0, np.int64), *own]))


def _get(documents: Documents) -> Callable[[int], Any]:
    return documents if callable(documents) else documents.__getitem__


def _flattened(plan: Plan, samples: IntArray, get: Callable[[int], Any], eod: Optional[int],
               vocab: int) -> tuple[IntArray, IntArray, IntArray]:
    """Token ids and targets of the samples, one after the other, and where each of the plan's samples begins."""
    lengths = plan.samples
    begins = np.zeros(len(lengths), np.int64)
    begins[samples] = np.cumsum(lengths[samples]) - lengths[samples]
    tokens = np.empty(lengths[samples].sum(), np.int64)
    targets = np.empty_like(tokens)
    longest = lengths.max()
    kept: dict[int, Any] = {}
    # Sorted by document: the pieces of one follow each other, so one at a time is kept.
    for sample in samples[np.argsort(plan.origin[samples, 1], kind="stable")].tolist():
        _, number, first = plan.origin[sample].tolist()
        end = first + int(lengths[sample])
        place = f"sample {sample} (document {number})"
        if number not in kept:
            kept = {number: _document(get, number, place)}
        document = kept[number]
        # A piece that is not its document's last is as long as the context, so no sample is longer.
        if len(document) < end or (len(document) > end and lengths[sample] < longest):
            raise InvalidInput(f"documents: {place} has {len(document)} tokens, but {end} were planned")
        piece = document[first : end + 1]
        if piece.min() < 0 or piece.max() >= vocab:
            wrong = piece[(piece < 0) | (piece >= vocab)][0]
            raise InvalidInput(f"documents: {place} must have token ids from 0 to {vocab - 1}, got {wrong}")
        begin = begins[sample]
        tokens[begin : begin + end - first] = piece[: end - first]
        targets[begin : begin + len(piece) - 1] = piece[1:]
        if len(document) == end:
            has_target = eod is not None and document[-1] != eod
            targets[begin + end - first - 1] = eod if has_target else NO_TARGET
    return tokens, targets, begins


def _document(get: Callable[[int], Any], number: int, place: str) -> Any:
    try:
        found = get(number)
    except LookupError as error:
        raise InvalidInput(f"documents: {place} is not there") from error
    document = np.asarray(found)
    if document.ndim != 1 or document.dtype.kind not in "iu":
        raise InvalidInput(f"documents: {place} must be integers with one axis, got {document.dtype} with "
                           f"{document.ndim}")
    return document
