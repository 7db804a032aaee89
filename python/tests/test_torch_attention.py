# SPDX-License-Identifier: Apache-2.0
"""Attention of slices, on CPUs and as GPUs are asked for it."""
import numpy as np
import pytest

pytest.importorskip("slimpack.torch", exc_type=ImportError)
import torch  # noqa: E402
from slimpack.torch import _attention as attention  # noqa: E402
from slimpack.torch._layout import Run, cell_of  # noqa: E402


def one_by_one(q, k, v, slices):
    """Attention of each query by itself; keys of a slice are all of its sample's so far."""
    made, row, key = [], 0, 0
    for prefix, length in slices:
        for i in range(length):
            seen = slice(key, key + prefix + i + 1)
            for head in range(q.shape[1]):
                of = head * k.shape[1] // q.shape[1]
                weights = torch.softmax(k[seen, of] @ q[row, head] / q.shape[2] ** 0.5, 0)
                made.append(weights @ v[seen, of])
            row += 1
        key += prefix + length
    return torch.stack(made).view(*q.shape)


def segments(q, k, lengths):
    """Runs of a call as flash attention is given them."""
    cu_q, cu_k, most_q, most_k = lengths
    assert cu_q.dtype == cu_k.dtype == torch.int32 and cu_q[-1] == len(q) and cu_k[-1] == len(k)
    ends_q, ends_k = cu_q.tolist(), cu_k.tolist()
    assert most_q == max(np.diff(ends_q)) and most_k == max(np.diff(ends_k))
    return tuple(Run(i, ends_q[i], ends_q[i + 1], ends_k[i + 1] - ends_k[i]) for i in range(len(ends_q) - 1))


def keys_of(k, v, lengths):
    return [attention.Keys(*pair) for pair in zip(*(x.split(np.diff(lengths[1].tolist()).tolist()) for x in (k, v)))]


def flash(q, k, v, lengths, scale):
    out, lse = attention._Reference.forward(q, keys_of(k, v, lengths), segments(q, k, lengths), scale)
    return out, lse.T


def flash_backward(gradient, q, k, v, out, lse, lengths, scale):
    dq, found = attention._Reference.backward(gradient, q, keys_of(k, v, lengths), out, lse.T,
                                              segments(q, k, lengths), scale)
    return dq, torch.cat([one.k for one in found]), torch.cat([one.v for one in found])


@pytest.mark.parametrize("slices", [[(0, 5)], [(3, 4)], [(0, 3), (7, 2), (0, 1), (2, 6)]])
def test_attention_is_that_of_each_query(slices, monkeypatch):
    """Output and gradients, in blocks of two queries as well as whole."""
    torch.manual_seed(0)
    cell = cell_of(slices)
    rows, keys = len(cell.positions), sum(prefix + length for prefix, length in slices)
    q, k, v = (torch.randn(count, heads, 8, dtype=torch.float64, requires_grad=True)
               for count, heads in ((rows, 4), (keys, 2), (keys, 2)))
    expected = one_by_one(q, k, v, slices)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    of_pieces = [attention.Keys(*pair) for pair in zip(*(x.detach().split([p + n for p, n in slices]) for x in (k, v)))]
    # Flash attention of a GPU, in torch's place: what it is called with, and what is made of its results.
    monkeypatch.setattr(attention, "_flash", flash)
    monkeypatch.setattr(attention, "_flash_backward", flash_backward)
    for core, block, most in ((attention._Reference, 512, 1e-12), (attention._Reference, 2, 1e-12),
                              (attention._Flash, 512, 1e-12),
                              (attention._Varlen, 512, 1e-6)):  # its log-sum-exp is fp32
        monkeypatch.setattr(attention, "_BLOCK", block)
        out, lse = core.forward(q.detach(), of_pieces, cell.runs, 8**-0.5)
        dq, found = core.backward(gradient, q.detach(), of_pieces, out, lse, cell.runs, 8**-0.5)
        assert torch.allclose(out, expected, 0, most) and torch.allclose(dq, q.grad, 0, most)
        assert torch.allclose(torch.cat([one.k for one in found]), k.grad, 0, most)
        assert torch.allclose(torch.cat([one.v for one in found]), v.grad, 0, most)


@pytest.mark.parametrize("dtype, most", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_flash_attention_of_cpus_is_the_reference(dtype, most):
    """Over prefixes of more than a tile, runs that read the same keys, rows of no run, and fewer heads of keys."""
    torch.manual_seed(1)
    runs = (Run(0, 0, 70, 70), Run(0, 70, 110, 300), Run(1, 110, 250, 700), Run(2, 250, 251, 1))
    q, gradient = (torch.randn(260, 6, 32, dtype=dtype) for _ in range(2))
    keys = [attention.Keys(*(torch.randn(count, 2, 32, dtype=dtype) for _ in range(2))) for count in (300, 700, 1)]
    made = []
    for core in (attention._Reference, attention._Flash):
        out, lse = core.forward(q, keys, runs, 0.2)
        dq, found = core.backward(gradient, q, keys, out, lse, runs, 0.2)
        assert out.dtype == dq.dtype == dtype and not out[251:].any() and not dq[251:].any()
        made.append([out, lse, dq, *(one for pair in found for one in pair)])
    assert all(torch.allclose(one.float(), other.float(), most, most) for one, other in zip(*made))
    assert attention.core_of(q) is attention._Flash


def test_runs_of_one_piece_are_calls_of_their_own():
    """Blocks of a group's rank read the same keys, which are not copied for each."""
    q, k, v = (torch.randn(rows, 2, 8, dtype=torch.float64) for rows in (4, 9, 9))
    runs = (Run(0, 0, 2, 4), Run(0, 2, 4, 9))
    calls = list(attention._calls(q, [attention.Keys(k, v)], runs))
    assert [(low, high, len(keys)) for low, high, keys, _, _ in calls] == [(0, 2, 4), (2, 4, 9)]


def test_shapes_are_those_of_the_operator():
    """torch's own shape rules for the operator, without a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(rows, heads, 16, dtype=torch.bfloat16, device="cuda")
                   for rows, heads in ((5, 4), (12, 2), (12, 2)))
        lengths = (*(torch.empty(3, dtype=torch.int32, device="cuda") for _ in range(2)), 3, 9)
        out, lse = attention._flash(q, k, v, lengths, 0.25)
        assert out.shape == q.shape and lse.shape == (4, 5)
        found = attention._flash_backward(out, q, k, v, out, lse, lengths, 0.25)
        assert [one.shape for one in found] == [q.shape, k.shape, v.shape]
