"""A row of SparseMLPTiles, and of a gated MLP with its gate, has the same bits in any pass, on any path and threads."""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import selfspec_kernels as kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_node import Experts, bits, gated, matrices, rows, run, session, shapes

WIDE = Experts(12, 4, 256, 160)  # enough work to be split over threads, in parts that end inside an expert


@settings(max_examples=60, deadline=None)
@given(experts=shapes(), data=st.data(), count=st.integers(2, 16), seed=st.integers(0, 2**32 - 1))
def test_a_row_has_the_same_bits_alone_and_among_others(
    experts: Experts, data: st.DataObject, count: int, seed: int
) -> None:
    """Rows share experts in ways that depend on all of them; what they share may not show, nor the path."""
    x, w, chosen = rows(experts, count, seed), matrices(experts, seed), data.draw(st.integers(1, experts.k))
    for path in reversed(kernels.paths()):
        kernels.use_path(path)
        op = session(experts, w)
        y, selected = run(op, x, chosen)
        if path == "scalar":
            want, selected_want = y, selected
            first, last = sorted(data.draw(st.lists(st.integers(0, count), min_size=2, max_size=2)))
        np.testing.assert_array_equal(bits(y), bits(want))
        np.testing.assert_array_equal(selected, selected_want)
        for part in (slice(first, last), *(slice(r, r + 1) for r in range(count))):
            y, selected = run(op, x[:, part], chosen)
            np.testing.assert_array_equal(bits(y), bits(want[:, part]))
            np.testing.assert_array_equal(selected, selected_want[:, part])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_any_rows_on_any_threads(threads: int) -> None:
    """The split is by columns and blocks of columns; several threads have one expert, and one thread several."""
    x, op = rows(WIDE, 16), session(WIDE, threads=threads)
    single = session(WIDE)
    alone = [run(single, x[:, r : r + 1], 4) for r in range(16)]
    want, want_selected = (np.concatenate(parts, axis=1) for parts in zip(*alone, strict=True))
    for count in range(1, 17):
        y, selected = run(op, x[:, :count], 4)
        np.testing.assert_array_equal(bits(y), bits(want[:, :count]))
        np.testing.assert_array_equal(selected, want_selected[:, :count])


def digest(threads: int) -> str:
    found = hashlib.sha256()
    for count, chosen in ((1, 4), (3, 2), (40, 4), (1, 1), (300, 3)):
        for array in run(session(WIDE, threads=threads), rows(WIDE, count), chosen):
            found.update(array.tobytes())
    return found.hexdigest()


def test_processes_of_one_to_four_threads_agree() -> None:
    """Each with its own pool and with working memory that no call before has grown."""
    script = "import sys; from test_sparse_mlp_rows import digest; print(digest(int(sys.argv[1])))"
    found = set()
    for threads in range(1, 5):
        command = [sys.executable, "-c", script, str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert found == {digest(1) + "\n"}


@pytest.mark.parametrize("chosen", [1, 4])
def test_the_seam_between_chunks_of_a_prompt_does_not_show(chosen: int) -> None:
    """A prompt is computed 256 rows at a time."""
    x, op = rows(WIDE, 513), session(WIDE, threads=2)
    y, selected = run(op, x, chosen)
    for r in (0, 255, 256, 511, 512):
        alone, alone_selected = run(op, x[:, r : r + 1], chosen)
        np.testing.assert_array_equal(bits(y[:, r : r + 1]), bits(alone))
        np.testing.assert_array_equal(selected[:, r : r + 1], alone_selected)


def test_all_rows_may_choose_one_expert() -> None:
    """Then it has more rows than any other, and the work is cut inside it."""
    x, router = np.abs(rows(WIDE, 64)), np.zeros((12, WIDE.K), np.float32)
    router[7] = 1
    op = session(WIDE, replace(matrices(WIDE), router=router), threads=3)
    y, selected = run(op, x, 1)
    assert (selected[..., 0] == 7).all()
    np.testing.assert_array_equal(bits(y[:, 33:34]), bits(run(op, x[:, 33:34], 1)[0]))


def test_one_session_may_run_in_several_threads() -> None:
    """Working memory belongs to the calling thread; shared, two callers would mix their rows."""
    op = session(WIDE, threads=2)
    passes = [(rows(WIDE, count, seed=count), 1 + count % 4) for count in (1, 2, 7, 30)]
    want = [run(op, *each)[0] for each in passes]
    with ThreadPoolExecutor(4) as pool:
        for i, (got, _) in enumerate(pool.map(lambda each: run(op, *each), passes * 20)):
            np.testing.assert_array_equal(bits(got), bits(want[i % len(want)]))


@pytest.mark.parametrize("count", [1, 2, 7, 200])
def test_a_gate_opens_as_a_sigmoid_and_row_by_row(count: int) -> None:
    """The gate of a shared expert, from wide open to shut: against float64, and to the bit against a row alone."""
    rng = np.random.default_rng(0)
    x, w = rows(WIDE, count), matrices(WIDE).expert(WIDE, 0)
    gate = (4 * rng.standard_normal((1, WIDE.K))).astype(np.float32)
    [plain] = gated(WIDE, *w).run(None, {"x": x})
    logits = x.astype(np.float64) @ gate[0].astype(np.float64)
    want = plain / (1 + np.exp(-np.clip(logits, -60, 60)))[..., None]
    for path in kernels.paths():
        kernels.use_path(path)
        op = gated(WIDE, *w, gate, threads=2)
        [y] = op.run(None, {"x": x})
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-30)
        if path == kernels.paths()[0]:
            first = y
        np.testing.assert_array_equal(bits(y), bits(first))
        for r in {0, count // 2, count - 1}:
            np.testing.assert_array_equal(bits(op.run(None, {"x": x[:, r : r + 1]})[0]), bits(y[:, r : r + 1]))


def test_a_gate_of_zeros_is_a_half_exactly() -> None:
    """What a shared expert without a gate of its own is carved with."""
    x, w = rows(WIDE, 5), matrices(WIDE).expert(WIDE, 0)
    [plain] = gated(WIDE, *w).run(None, {"x": x})
    [y] = gated(WIDE, *w, np.zeros((1, WIDE.K), np.float32)).run(None, {"x": x})
    np.testing.assert_array_equal(bits(y), bits(plain / 2))
